"""Digits and generated motions from 10 % of the labels: from scratch against contrastive training.

    python experiments/contrastive.py digits MOUTHS OUTPUT [SEED …]
    python experiments/contrastive.py motions MOTION OUTPUT [SEED …]
    python experiments/contrastive.py table OUTPUT model_zoo/results/contrastive

MOUTHS is written by `words.py cut`, and MOTION by `python -m ffn.datasets.synthetic MOTION`. Each
seed trains without labels on all clips (for digits on all words of the sentences), and then with
the labels of 10 % of each class: a new network (scratch), the one trained without labels
(fine_tuned), and its classifier alone (probe). A stopped run continues. `table` writes NAME.md and
NAME.json.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
from words import KINDS, POINTS, SCORES, ffn, interval, write_lists

from ffn.evaluation import load_predictions

FRAMES = (2, 4, 8, 16)
TESTED = ["--frames", *map(str, FRAMES), "--save-predictions", "--no-latency", "--overwrite"]
CONFIGS = "configs/quickstart/motion_contrastive.yaml", "configs/quickstart/motion_any_count.yaml"
COMMON = ["task.frames=[2,4,8]", "task.ranges=[[2,2],[3,5],[6,10]]", "task.draws=[[2,4],[5,10]]"]
COMMON += ["data.test_frames=[2]", "train.validate_epochs=1000"]
LABELLED = ["train.batch_size=12", "optim.weight_decay=0.1", "data.classes=null"]
ARMS = {
    "scratch": ["model.weights=null"],
    "fine_tuned": ["model.weights={start}"],
    "probe": ["model.weights={start}", "train.freeze=[head_only]", "optim.lr=0.01"],
}
DATA = {  # options of both trainings, of the one without labels, and of those with labels
    "digits": (
        "data.resize=24",
        """train.epochs=8 train.batch_size=24 train.group_videos=true optim.lr=0.004
        data.scales=[1.0,0.89] data.color_jitter=[0.3,0.3,0.3,0.0]""",
        "train.epochs=80",
    ),
    "motions": ("", "train.epochs=8 train.batch_size=32", "train.epochs=40"),
}


def write_few(source: Path, target: Path, seed: int) -> None:
    """Write a list with 10 % of the rows of each class."""
    rows, kept = [*csv.reader(source.open(newline=""))], []
    column, rng = rows[0].index("label"), np.random.default_rng(100 + seed)
    for label in sorted({row[column] for row in rows[1:]}):
        own = [row for row in rows[1:] if row[column] == label]
        kept += [own[i] for i in rng.permutation(len(own))[: round(len(own) / 10)]]
    with target.open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *kept])


def run(data: str, root: Path, output: Path, seed: int) -> None:
    """Train and test the networks of a seed that have no result."""
    folder = output / data
    folder.mkdir(parents=True, exist_ok=True)
    unlabelled, labelled, tested = root / "train.csv", root / "train.csv", folder / "test.csv"
    if data == "digits":
        write_lists(root, output / "words", KINDS)
        write_lists(root, folder, ["digit"])
        unlabelled, labelled = output / "words/train.csv", folder / "train.csv"
    else:
        header, *rows = (root / "val.csv").read_text().splitlines()
        tested.write_text("\n".join([header, *rows[::3], ""]))
    few, start = folder / f"labels.{seed}.csv", folder / f"contrastive.{seed}"
    both, first, second = (options.split() for options in DATA[data])
    common = [f"data.root={root}", f"data.val={tested}", f"train.seed={seed}", *COMMON, *both]
    ffn("train", CONFIGS[0], *common, f"data.train={unlabelled}", *first, f"log.output={start}")
    write_few(labelled, few, seed)
    for arm, options in ARMS.items():
        network, result = folder / f"{arm}.{seed}", folder / f"{arm}.{seed}.json"
        if result.exists():
            continue
        own = [*LABELLED, *second, *(option.format(start=start / "last.pt") for option in options)]
        ffn("train", CONFIGS[1], *common, f"data.train={few}", *own, f"log.output={network}")
        weights = ["--weights", str(network / "last.pt"), "--output", str(network / "test")]
        ffn("test", str(network / "config.yaml"), *weights, *TESTED)
        found = load_predictions(next((network / "test").glob("*.safetensors")))
        right = [(found.answers(count)[0] == found.label).int().tolist() for count in FRAMES]
        result.write_text(json.dumps({"options": own, "right": right}))


def table(output: Path, name: Path) -> None:
    """Write the tables of the seeds that have all results, and their numbers."""
    lines, numbers = ["# 10 % of the labels, after training without labels", ""], {}
    for data in DATA:
        paths = [{p.suffixes[0]: p for p in (output / data).glob(f"{a}.*.json")} for a in ARMS]
        seeds = sorted(set.intersection(*map(set, paths)))
        if not seeds:
            continue
        read = [[json.loads(own[seed].read_text())["right"] for seed in seeds] for own in paths]
        scratch, *others = map(np.array, read)  # (seeds, counts, videos)
        rows = {"scratch": (scratch, SCORES)}
        for arm, right in zip([*ARMS][1:], others, strict=True):
            rows |= {arm: (right, SCORES), f"{arm} - scratch": (right - scratch, POINTS)}
        head = [f"{data}, {scratch.shape[2]} videos", *map(str, FRAMES), "mean", "mean per seed"]
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for key, (right, form) in rows.items():
            cells = [interval(one) for one in (*right.swapaxes(0, 1), right.mean(1))]
            per_seed = (100 * right.mean((1, 2))).round(2).tolist()
            numbers[f"{data}, {key}"] = {"2, 4, 8, 16, mean": cells, "mean per seed": per_seed}
            text = [*(form.format(*cell) for cell in cells), " / ".join(map(str, per_seed))]
            lines.append(f"| {key} | {' | '.join(text)} |")
        lines.append("")
    name.with_suffix(".md").write_text("\n".join(lines))
    name.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    command, source, target, *seeds = sys.argv[1:]
    if command == "table":
        table(Path(source), Path(target))
    for seed in map(int, (seeds or "012") if command in DATA else ""):
        run(command, Path(source).absolute(), Path(target).absolute(), seed)
