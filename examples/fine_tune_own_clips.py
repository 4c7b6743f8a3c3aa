"""From a folder of clips per class to a published network, with the commands of ffn.

python examples/fine_tune_own_clips.py                   # generated clips, tiny network, 2 minutes
python examples/fine_tune_own_clips.py --clips data/own  # data/own/CLASS/*.mp4, from ImageNet
python examples/fine_tune_own_clips.py --clips data/own --groups '_p([0-9]+)_' data.flip=random

The commands split and check the clips, resume an interrupted run and record what was trained. Each
is printed after a $, and can be typed as it stands. examples/own_training_loop.py trains in Python.
"""

import argparse
import shlex
import shutil
import sys
from pathlib import Path

import ffn
from ffn.cli import main
from ffn.data import read_annotations
from ffn.datasets.synthetic import CLASSES, generate

PLAIN_CONFIG, PLAIN = "quickstart/own_clips_plain", Path("runs/own_clips_plain")
FLEXIBLE_CONFIG, FLEXIBLE = "quickstart/own_clips", Path("runs/own_clips")
FRAMES = (2, 4, 6, 8, 12, 16, 20)  # of the tests
# For generated clips: weights that ship with ffn. They were trained on clips of the same kind, also
# of these classes; the accuracies only show that the example works.
SHIPPED, SMALL = "tsm_tiny.motion_f4_8_16", ["data.crop=24", "data.resize=28"]


def run(command: str, *words: object) -> None:
    """Run `ffn COMMAND WORD …` in this process; end with its exit status if it fails."""
    arguments = [str(word) for word in words]
    print(f"\n$ ffn {command} {shlex.join(arguments)}", flush=True)
    status = main([command, *arguments])
    if status:
        sys.exit(status)


def generated_clips(folder: Path) -> Path:
    """Generate a folder of short mp4 files for each of six classes."""
    if not folder.exists():
        made = generate(folder.with_name("made"), train_per_class=20, val_per_class=1)
        for label in CLASSES[:6]:
            (folder / label).mkdir(parents=True)
            for clip in (made / "videos").glob(f"train_{label}_*.mp4"):
                shutil.move(clip, folder / label)
        shutil.rmtree(made)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, help="folder with a folder per class")
    parser.add_argument("--groups", help="regular expression: group of related clips, in one split")
    parser.add_argument("--model", help="default: tsm_mobilenetv2; tsm_tiny for generated clips")
    parser.add_argument("--start", help="zoo name or file of weights; default: ImageNet weights")
    options = "of both trainings: train.epochs=20, model.pretrained=false (random start weights), …"
    parser.add_argument("options", nargs="*", help=options)
    given = parser.parse_intermixed_args()
    root = given.clips or generated_clips(Path("data/own_generated"))
    model = given.model or ("tsm_mobilenetv2" if given.clips else "tsm_tiny")
    data = [f"data.root={root}", "data.train=index/train.csv", "data.val=index/val.csv"]
    options = [f"model.name={model}", *data, "data.classes=index/classes.txt", "log.wandb=disabled"]
    options += [*([] if given.clips else SMALL), *given.options]
    weights = given.start or (None if given.clips else SHIPPED)
    start = [f"model.weights={weights}", "model.pretrained=false"] if weights else []

    # 1. Split: a fifth of each class becomes the validation clips; related clips stay together.
    if not (root / "index/train.csv").exists():
        groups = ["--group-pattern", given.groups] if given.groups else []
        run("prepare", "folder", "--root", root, "--val-fraction", 0.2, *groups)
    # 2. Check: decode every clip. A damaged one ends the program; the message names it.
    for split in ("train", "val"):
        run("check_data", root / f"index/{split}.csv", "--root", root, "--overwrite")
    # 3. Train a plain network at 16 frames, then the frame-flexible one at 4, 8 and 16 from it.
    run("train", PLAIN_CONFIG, *options, *start)
    run("train", FLEXIBLE_CONFIG, *options)
    # 4. Test both at FRAMES.
    for config, folder in ((PLAIN_CONFIG, PLAIN), (FLEXIBLE_CONFIG, FLEXIBLE)):
        place = ["--weights", folder / "last.pt", "--output", folder / "test", "--overwrite"]
        run("test", config, *options, "--frames", *FRAMES, *place)
    # 5. Publish: one file with the network, its classes, preprocessing and accuracy.
    name, release = f"{model}.own_f4_8_16", FLEXIBLE / "release"
    results = ["--results", FLEXIBLE / "test/results.json", "--output", release, "--overwrite"]
    run("publish", FLEXIBLE / "last.pt", name, *results)
    # 6. Predict: `ffn predict CLIP --weights FILE`, in Python.
    clip = read_annotations(root / "index/val.csv", root=root)[0][0].path
    predictor = ffn.Predictor(release / f"{name}.safetensors")
    for frames in (4, 6, 16):
        (label, probability), *_ = predictor(clip, frames=frames).top(1)
        print(f"{clip} with {frames} frames: {label} ({100 * probability:.0f} %)")
