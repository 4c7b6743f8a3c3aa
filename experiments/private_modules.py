"""A video transformer on generated motions: which modules are private to a frame count.

    python -m ffn.datasets.synthetic MOTION --clips-per-class 600 60
    python experiments/private_modules.py run MOTION OUTPUT [SEED …]
    python experiments/private_modules.py contrastive MOTION OUTPUT [SEED …]
    python experiments/private_modules.py table OUTPUT model_zoo/results/private_modules

`run` trains vit_tiny from scratch in each form and tests it at 1 to 20 frames. `contrastive` does
so from a network that was trained without labels, and needs an OUTPUT and a NAME of its own. Both
skip what OUTPUT holds. `table` adds these results to the answers in NAME.json, and writes NAME.md
from all seeds of which each network has answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from words import ANY_COUNT, POINTS, SCORES, ffn, interval

from ffn.evaluation import load_predictions

FRAMES = range(1, 21)
TESTED = ["--frames", *map(str, FRAMES), "--save-predictions", "--no-latency", "--overwrite"]
CONFIGS = "configs/quickstart/motion_any_count.yaml", "configs/quickstart/motion_contrastive.yaml"
SHARED = ["model.name=vit_tiny", "optim.lr=1e-3", "optim.weight_decay=0.05", "data.cache_gib=1.5"]
COMMON = [*SHARED, "model.weights=null", "optim.warmup_epochs=0.5", "train.batch_size=32"]
COMMON += ["train.epochs=8", "train.validate_epochs=8", "data.test_frames=[8]"]
UNLABELLED = [*SHARED, "task.frames=[4,8,16]", "task.ranges=[[2,5],[6,11],[12,20]]"]
UNLABELLED += ["task.draws=[[2,5],[6,20]]"]
THREE = ["task.frames=[4,8,16]", "task.ranges=[]", "task.draws=[]"]
ALONE = ["task.name=plain", "task.ranges=[]"]
NETWORKS = {
    "private norms": THREE,
    "private norms without alterations": [*THREE, "task.alteration=false"],
    "private norms, any count": ANY_COUNT,
    "private classifiers": [*THREE, "task.private=head", "task.alteration=false"],
    "private norms and classifiers": [*THREE, "task.private=norms,head"],
    **{f"{n} frames alone": [*ALONE, f"task.frames=[{n}]"] for n in (4, 8, 16)},
}


def start(root: Path, output: Path, seed: int) -> str:
    """Train a network without labels; the option with its weights."""
    folder = output / f"start.{seed}"
    options = [*UNLABELLED, f"data.root={root}", f"train.seed={seed}"]
    ffn("train", CONFIGS[1], *options, f"log.output={folder}")
    return f"model.weights={folder / 'last.pt'}"


def run(root: Path, output: Path, name: str, seed: int, *more: str) -> None:
    """Train and test a network with further options, unless its result exists."""
    folder = output / f"{name.replace(' ', '_')}.{seed}"
    result = folder.with_name(f"{folder.name}.json")
    if result.exists():
        return
    options = [*COMMON, *NETWORKS[name], f"data.root={root}", f"train.seed={seed}", *more]
    ffn("train", CONFIGS[0], *options, f"log.output={folder}")
    weights = ["--weights", str(folder / "last.pt"), "--output", str(folder / "test")]
    ffn("test", str(folder / "config.yaml"), *weights, *TESTED)
    found = load_predictions(next((folder / "test").glob("*.safetensors")))
    right = [(found.answers(count)[0] == found.label).int().tolist() for count in FRAMES]
    result.write_text(json.dumps({"options": options, "right": right}))


def table(output: Path, name: Path) -> None:
    """Add to the answers, a bit per count and video, and write the table of the whole seeds."""
    path = name.with_suffix(".json")
    known = json.loads(path.read_text()) if path.exists() else {}
    answers = {n: known.get(n, {}) for n in NETWORKS}
    for n, own in answers.items():
        for found in output.glob(f"{n.replace(' ', '_')}.*.json"):
            bits = np.packbits(json.loads(found.read_text())["right"], axis=1)
            own[found.suffixes[-2][1:]] = [row.tobytes().hex() for row in bits]
    path.write_text(json.dumps(answers, indent=1) + "\n")
    seeds = sorted(set.intersection(*map(set, answers.values())))
    if not seeds:
        return
    rows = {n: [[*map(bytes.fromhex, own[seed])] for seed in seeds] for n, own in answers.items()}
    right = {  # (T, seeds, videos), whose number is a multiple of 8
        n: np.unpackbits(np.array([[[*row] for row in one] for one in own], np.uint8), axis=2)
        for n, own in rows.items()
    }
    right = {n: own.swapaxes(0, 1).astype(int) for n, own in right.items()}
    numbers = {n: [*map(interval, values)] for n, values in right.items()}
    alone = np.stack([right[f"{n} frames alone"][n - 1] for n in (4, 8, 16)])
    differences = {n: [*map(interval, right[n][[3, 7, 15]] - alone)] for n in [*NETWORKS][:-3]}
    start = ", from contrastive training" * name.stem.endswith("contrastive")
    lines = [f"# Video transformers: private modules{start}", ""]
    shown = f"Seeds: {', '.join(seeds)}; means of {alone.shape[2]} videos, top-1 (%), with their"
    lines += [f"{shown} 95 % bootstrap intervals.", ""]
    for head, rows, form in (
        (["top-1 (%)", *map(str, FRAMES)], numbers, SCORES),
        (["minus separate networks, points", "4", "8", "16"], differences, POINTS),
    ):
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for key, row in rows.items():
            lines.append(f"| {key} | {' | '.join(form.format(*cell) for cell in row)} |")
        lines.append("")
    name.with_suffix(".md").write_text("\n".join(lines))


if __name__ == "__main__":
    command, source, target, *rest = sys.argv[1:]
    if command in ("run", "contrastive"):
        root, output = Path(source).absolute(), Path(target).absolute()
        for seed in map(int, rest or "012"):
            more = [start(root, output, seed)] * (command == "contrastive")
            for name in NETWORKS:
                run(root, output, name, seed, *more)
    else:
        table(Path(source), Path(target))
