"""Cross-validate a config on your own clips: each is tested by a network that has not seen it.

pip install scikit-learn
python examples/cross_validation.py CONFIG clips.csv data.root=/data/own train.epochs=20

``clips.csv`` has the columns path, label and group. Clips of one group (a person, a scene, a source
video) resemble each other and are never in training and test together. Lists, runs and the table
are written to runs/cross_validation.
"""

import argparse
import csv
import json
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path

from sklearn.model_selection import StratifiedGroupKFold

FOLDS, OUTPUT = 5, Path("runs/cross_validation")


def write_list(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write the paths and labels of some clips; returns the absolute path of the list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "label"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path.absolute()


def test_fold(folder: Path, config: str, options: list[str]) -> dict[int, float]:
    """Train and test one fold; returns the top-1 accuracy per frame count, in percent."""
    subprocess.run(["ffn", "train", config, *options, f"log.output={folder}"], check=True)
    # The last weights: the best ones would be chosen by the clips of the test.
    command = ["ffn", "test", config, *options, "--weights", f"{folder}/last.pt", "--no-latency"]
    subprocess.run([*command, "--output", f"{folder}/test", "--overwrite"], check=True)
    (network,) = json.loads((folder / "test/results.json").read_text())["networks"]
    return {row["frames"]: row["top1"] for row in network["rows"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="YAML file, or a name of `ffn configs`")
    parser.add_argument("clips", type=Path, help="list with the columns path, label and group")
    parser.add_argument("options", nargs="*", metavar="key=value", help="of the trainings")
    given = parser.parse_intermixed_args()
    with given.clips.open(newline="") as file:
        clips = list(csv.DictReader(file))
    columns = ([clip[name] for clip in clips] for name in ("path", "label", "group"))
    found = defaultdict(list)
    for fold, (train, test) in enumerate(StratifiedGroupKFold(FOLDS).split(*columns)):
        folder = OUTPUT / f"fold_{fold}"
        lists = [
            f"data.{name}={write_list(folder / f'{name}.csv', [clips[i] for i in part])}"
            for name, part in (("train", train), ("val", test))
        ]
        for frames, top1 in test_fold(folder / "run", given.config, given.options + lists).items():
            found[frames].append(top1)
    for frames, scores in found.items():
        mean, spread = statistics.mean(scores), statistics.stdev(scores)
        print(f"{frames:2} frames: top-1 {mean:.1f} ± {spread:.1f} % over {len(scores)} folds")
