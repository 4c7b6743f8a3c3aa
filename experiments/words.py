"""Words of one speaker at 1 to 16 frames: one network for any count against separate ones.

    python experiments/words.py cut GRID MOUTHS
    python experiments/words.py run MOUTHS OUTPUT [SEED …]
    python experiments/words.py imagenet MOUTHS OUTPUT WEIGHTS [SEED …]
    python experiments/words.py table OUTPUT model_zoo/results/words

GRID holds letter.csv, digit.csv, … of all sentences (path, start, end, label), as the lists of `ffn
prepare grid` have them, and videos of 112 x 80 pixels around the mouth.
`cut` copies lists and videos, which show the mouth alone. `run` trains a plain network on all words
of 600 sentences, and from it each network on a kind of word; it tests on 162 other sentences. It
skips what OUTPUT holds, so it continues after a stop, and writes the answer for each clip into
OUTPUT/SLOT/NETWORK.SEED.json. `imagenet` does it with tsm_mobilenetv2 from WEIGHTS, which learned
all words (docs/words.md). `table` writes NAME.md, NAME.json and NAME.png.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import av
import matplotlib.pyplot as plt
import numpy as np

from ffn.evaluation import load_predictions

TEST = 162  # sentences that no training sees
SLOTS = ("letter", "digit")
KINDS = (*SLOTS, "command", "colour", "preposition", "adverb")
FRAMES = range(1, 17)
TESTED = ["--frames", *map(str, FRAMES), "--save-predictions", "--no-latency", "--overwrite"]
CONFIG = "configs/quickstart/own_motions.yaml"
ANY_COUNT = [
    "task.frames=[2,4,6,9,12,16,20]",
    "task.ranges=[[2,2],[3,4],[5,7],[8,10],[11,13],[14,17],[18,20]]",
    "task.draws=[[2,2],[3,5],[6,11],[12,20]]",
]
NETWORKS = {
    "any_count": [*ANY_COUNT, "task.interpolate=false", "train.epochs=45"],
    "paper_4_8_16": ["task.small_views=distill", "task.interpolate=false"],
    **{f"plain_{n}": ["task.name=plain", f"task.frames=[{n}]"] for n in (2, 4, 8, 16)},
}
LABELS = {
    "any_count": "one network, any count",
    "paper_4_8_16": "one network, 4, 8 and 16 (the paper)",
    **{f"plain_{n}": f"{n} frames alone" for n in (16, 8, 4, 2)},
}
START, RECIPE = ["train.epochs=12"], ["train.epochs=30"]
IMAGENET = ["data.crop=48", "data.resize=48", "optim.lr=7e-4", "optim.weight_decay=0.05"]
IMAGENET += ["model.name=tsm_mobilenetv2", "train.epochs=16", "train.batch_size=8"]
WIDTH, HEIGHT = 64, 48  # of the mouth, pixels; GRID's are cut to 112 x 80
SCORES, POINTS = "{:.1f} [{:.1f}, {:.1f}]", "{:+.1f} [{:+.1f}, {:+.1f}]"


def cut(root: Path, output: Path) -> None:
    """Cut the videos to a window around the lips: the reddest tenth of the skin, at its middle."""
    for path in sorted(root.rglob("*.*")):
        target = output / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            shutil.copy(path, target)
            continue
        with av.open(str(path)) as video:
            frames = np.stack([one.to_ndarray(format="rgb24") for one in video.decode(video=0)])
        height, width = frames.shape[1:3]
        red, green, blue = np.moveaxis(frames.mean(0), -1, 0)
        lips = np.where(red > blue, (red - green) / (red + green + blue), 0)
        lips[: height // 3] = lips[:, : width // 6] = lips[:, -width // 6 :] = 0  # nose, ears
        where = np.nonzero(lips > np.percentile(lips[lips > 0], 90))
        top, left = (int(np.median(axis)) for axis in where)
        top = min(max(top - HEIGHT // 2, 0), height - HEIGHT)
        left = min(max(left - WIDTH // 2, 0), width - WIDTH)
        with av.open(str(target), "w") as video:
            stream = video.add_stream("libx264", rate=25, options={"crf": "10", "g": "25"})
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            for frame in frames[:, top : top + HEIGHT, left : left + WIDTH]:
                image = av.VideoFrame.from_ndarray(frame.copy(), format="rgb24")
                video.mux(stream.encode(image))
            video.mux(stream.encode())


def write_lists(root: Path, output: Path, slots: Sequence[str]) -> list[str]:
    """Write train.csv and test.csv of some kinds of word; return the options that name them.

    A sentence is in one part for all kinds: the order of the sorted paths is shuffled with seed 0.
    """
    rows = []
    for slot in slots:
        header, *lines = (root / f"{slot}.csv").read_text().splitlines()
        rows += lines
    names = sorted({row.partition(",")[0] for row in rows})
    random.Random(0).shuffle(names)
    output.mkdir(parents=True, exist_ok=True)
    for part, chosen in (("test", {*names[:TEST]}), ("train", {*names[TEST:]})):
        kept = [row for row in rows if row.partition(",")[0] in chosen]
        (output / f"{part}.csv").write_text("\n".join([header, *kept, ""]))
    lists = [f"data.train={output}/train.csv", f"data.val={output}/test.csv"]
    return [f"data.root={root}", *lists, "data.workers=0"]


def all_words(root: Path, output: Path, seed: int) -> str:
    """Train a plain network on all words, unless its run exists; return its weights."""
    folder = output / "all" / f"plain_8.{seed}"
    lists = [*write_lists(root, folder.parent, KINDS), f"train.seed={seed}"]
    ffn("train", CONFIG, *NETWORKS["plain_8"], *START, *lists, f"log.output={folder}")
    return f"{folder}/last.pt"


def run(root: Path, output: Path, slot: str, name: str, seed: int, weights: str = "") -> None:
    """Train and test a network, unless its result exists; weights: of ImageNet."""
    folder = output / slot / f"{name}.{seed}"
    result = folder.with_name(f"{folder.name}.json")
    if result.exists():
        return
    options = [*RECIPE, *NETWORKS[name], *(IMAGENET if weights else []), f"train.seed={seed}"]
    options += [f"model.weights={weights or all_words(root, output, seed)}"]
    options += write_lists(root, folder.parent, [slot])
    begin = time.time()
    ffn("train", CONFIG, *options, f"log.output={folder}")
    written = {"seconds": round(time.time() - begin), "options": options}
    for kind, flags in (("ordered", []), ("shuffled", ["--shuffle-frames"])):
        weights = ["--weights", str(folder / "last.pt"), "--output", str(folder / kind)]
        ffn("test", str(folder / "config.yaml"), *weights, *TESTED, *flags)
        found = load_predictions(next((folder / kind).glob("*.safetensors")))
        right = [found.answers(count)[0] == found.label for count in FRAMES]
        written[kind] = [one.int().tolist() for one in right]  # by count, by clip of the list
    result.write_text(json.dumps(written))


def ffn(*words: str) -> None:
    """Run a command, and stop if it fails."""
    print("ffn", *words, flush=True)
    subprocess.run([sys.executable, "-m", "ffn", *words], check=True)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean of (seeds, clips) in percent, and its 95 % bootstrap interval over clips."""
    clips = 100 * values.mean(0)
    chosen = np.random.default_rng(0).integers(len(clips), size=(10_000, len(clips)))
    found = clips.mean(), *np.percentile(clips[chosen].mean(1), [2.5, 97.5])
    return tuple(round(float(one), 2) for one in found)


def collect(folder: Path, kind: str) -> dict[str, np.ndarray]:
    """By network, (counts, seeds, clips) of 0 and 1, of the seeds that all networks have."""
    paths = {name: {p.suffixes[0]: p for p in folder.glob(f"{name}.*.json")} for name in NETWORKS}
    paths = {name: found for name, found in paths.items() if found}
    seeds = sorted(set.intersection(*map(set, paths.values())))
    read = {name: [json.loads(paths[name][seed].read_text()) for seed in seeds] for name in paths}
    return {n: np.array([one[kind] for one in runs]).swapaxes(0, 1) for n, runs in read.items()}


def table(output: Path, name: Path) -> None:
    """Write the tables, their numbers, and the figure."""
    lines, numbers = ["# Words of one speaker at 1 to 16 frames", ""], {}
    folders = {slot: output / slot for slot in SLOTS}
    for slot in SLOTS:
        folders[f"{slot}, tsm_mobilenetv2 from ImageNet"] = output / "imagenet" / slot
    for slot, folder in folders.items():
        ordered = collect(folder, "ordered")
        one = ordered["any_count"]
        differences = {f"any_count - {n}": one - other for n, other in [*ordered.items()][1:]}
        lines += [f"## {slot}: {one.shape[2]} clips, mean of {one.shape[1]} seeds", ""]
        for title, values, form in (
            ("top-1 (%)", ordered, SCORES),
            ("points", differences, POINTS),
            ("top-1 (%), shuffled frames", collect(folder, "shuffled"), SCORES),
        ):
            found = {key: [*map(interval, value)] for key, value in values.items()}
            numbers[f"{slot}, {title}"] = found
            head = [title, *map(str, FRAMES)]
            lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
            for key, row in found.items():
                lines.append(f"| {key} | {' | '.join(form.format(*cell) for cell in row)} |")
            lines.append("")
    draw(numbers, name.with_suffix(".png"))
    name.with_suffix(".md").write_text("\n".join(lines))
    name.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")


def draw(numbers: dict[str, dict], path: Path) -> None:
    """Draw the accuracy of the networks against frames, with the interval of the any-count one."""
    shape = {"figsize": (10, 4), "layout": "constrained", "sharey": True, "squeeze": False}
    figure, [axes] = plt.subplots(1, len(SLOTS), **shape)
    for slot, axis in zip(SLOTS, axes, strict=True):
        for number, (name, label) in enumerate(LABELS.items()):
            mean, low, high = zip(*numbers[f"{slot}, top-1 (%)"][name], strict=True)
            style = {"lw": 2.5, "zorder": 3} if name == "any_count" else {"ls": "--"}
            axis.plot(FRAMES, mean, marker="os^Dv>"[number], ms=4, label=label, **style)
            if name == "any_count":
                axis.fill_between(FRAMES, low, high, alpha=0.15)
        axis.set(title=f"{slot}s read from lips", xlabel="frames of the clip", xticks=FRAMES)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel="top-1 accuracy (%)", ylim=(0, 100))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    command, source, target, *rest = sys.argv[1:]
    source, target = Path(source).absolute(), Path(target).absolute()
    if command == "run":
        for seed, slot, name in product(map(int, rest or "012"), SLOTS, NETWORKS):
            run(source, target, slot, name, seed)
    elif command == "imagenet":
        weights, *seeds = rest
        for seed, slot, name in product(map(int, seeds or "012"), SLOTS, NETWORKS):
            run(source, target / "imagenet", slot, name, seed, weights)
    else:
        {"cut": cut, "table": table}[command](source, target)
