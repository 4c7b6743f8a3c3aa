"""Causal against bidirectional networks: answers at each frame, and words in a running sentence.

    python -m ffn.datasets.synthetic MOTION --clips-per-class 600 60
    python experiments/words.py cut GRID MOUTHS
    python experiments/causal.py run MOTION MOUTHS OUTPUT [SEED …]
    python experiments/causal.py table OUTPUT model_zoo/results/causal

`run` trains tsm_tiny at 4, 8 and 16 frames in both forms, on generated films from scratch, and on
letters and digits (experiments/words.py) from a plain network of all words. It skips what OUTPUT
holds. `table` writes NAME.md, NAME.json and NAME.png.
"""

from __future__ import annotations

import csv
import json
import sys
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from words import CONFIG, KINDS, NETWORKS, POINTS, SCORES, START, interval, write_lists
from words import ffn as command

import ffn
from ffn.data import Normalize

FORMS = {"causal": "true", "bidirectional": "false"}
FILMS = ["model.weights=null", "train.epochs=16", "train.validate_epochs=16"]
TASKS = ("films", "letter", "digit")
FRAMES, RATE = 16, 25  # of a clip; of the sentences, per second
WINDOWS = {"causal": (4, 6, 12), "bidirectional": (8, 12)}  # frames that an answer is about
LATE = 0.4  # seconds after a word, in which it counts as found
THRESHOLDS = [n / 10 for n in range(1, 10)]


@torch.no_grad()
def answers(model: torch.nn.Module, clips: Tensor) -> dict[str, list[Tensor]]:
    """Classes (B,) after each of the frames of clips (B, C, 16, H, W), by how they are read."""
    if model.model.causal:
        streams = {stride: ffn.stream(model, stride=stride) for stride in (1, 2, 4)}
        return {
            f"causal, stride {stride}": [
                stream.step(frame).argmax(1) for frame in clips.unbind(2)[::stride]
            ]
            for stride, stream in streams.items()
        }
    begun = [clips[:, :, : n + 1] for n in range(FRAMES)]
    return {
        "bidirectional, nearest sub-network": [model(clip).argmax(1) for clip in begun],
        "bidirectional, of 16 frames": [model(clip, active=FRAMES).argmax(1) for clip in begun],
    }


def online(weights: str, listed: Path, root: Path) -> dict[str, list[list[int]]]:
    """Whether the answer of each clip is right, by how it is read and by frames so far."""
    predictor = ffn.Predictor(weights, precision="fp32")
    reader, normalize = predictor.reader(FRAMES), Normalize(predictor.preprocessing)
    rows = list(csv.DictReader(listed.open()))
    times = [[float(row[key]) if key in row else None for key in ("start", "end")] for row in rows]
    found: dict[str, list[list[int]]] = {}
    for n in range(0, len(rows), 64):
        part = list(zip(rows, times, strict=True))[n : n + 64]
        clips = torch.stack([reader.read(str(root / r["path"]), *t).pixels for r, t in part])
        labels = torch.tensor([predictor.classes.index(row["label"]) for row, _ in part])
        for name, given in answers(predictor.model, normalize(clips)).items():
            new = [(one == labels).int().tolist() for one in given]
            found[name] = [
                a + b for a, b in zip(found.get(name, [[]] * len(new)), new, strict=True)
            ]
    return found


@torch.no_grad()
def spotted(weights: str, listed: Path, root: Path) -> dict[str, list[list[float | None]]]:
    """Delay in seconds of the digit of each sentence, by window and threshold; None: not found.

    The digit is the first whose probability reaches the threshold. It is right from the start of
    the word to `LATE` after its end. The average over time of a causal network forgets what is
    before its window.
    """
    predictor = ffn.Predictor(weights, precision="fp32")
    model, normalize = predictor.model, Normalize(predictor.preprocessing)
    reader, rows = predictor.reader(75), list(csv.DictReader(listed.open()))
    digits = sorted({predictor.classes.index(row["label"]) for row in rows})
    windows = WINDOWS["causal" if model.causal else "bidirectional"]
    delays: dict[str, list[list[float | None]]] = {
        f"{window} frames": [[] for _ in THRESHOLDS] for window in windows
    }
    for row, window in product(rows, windows):
        clip = normalize(reader.read(str(root / row["path"])).pixels[None])
        if model.causal:
            stream = ffn.stream(model, window=window)
            logits = torch.cat([stream.step(frame) for frame in clip.unbind(2)])
        else:
            ends = torch.arange(clip.shape[2])[:, None]
            chosen = (ends - window + 1 + torch.linspace(0, window - 1, 8).round().int()).clamp(0)
            logits = model(clip[0][:, chosen].transpose(0, 1))
        high, which = logits.softmax(1)[:, digits].max(1)
        for threshold, found in zip(THRESHOLDS, delays[f"{window} frames"], strict=True):
            reached = (high >= threshold).nonzero().flatten().tolist()
            time = reached[0] / RATE if reached else np.inf
            right = reached and predictor.classes[digits[which[reached[0]]]] == row["label"]
            is_near = float(row["start"]) <= time <= float(row["end"]) + LATE
            found.append(time - float(row["start"]) if right and is_near else None)
    return delays


def run(motion: Path, mouths: Path, output: Path, form: str, seed: int) -> None:
    """Train and test the networks of a form and a seed, unless their results exist."""
    common = [f"model.causal={FORMS[form]}", f"train.seed={seed}"]
    words = write_lists(mouths, output / "words", KINDS)
    whole = output / f"words.{form}.{seed}"
    command("train", CONFIG, *NETWORKS["plain_8"], *START, *common, *words, f"log.output={whole}")
    for task in TASKS:
        result, folder = output / f"{task}.{form}.{seed}.json", output / f"{task}.{form}.{seed}"
        if result.exists():
            continue
        if task == "films":
            flexible, root, lists = "configs/quickstart/motion_flexible.yaml", motion, motion
            options = [*FILMS, f"data.root={motion}"]
        else:
            flexible, root, lists = CONFIG, mouths, output / task
            options = [*NETWORKS["paper_4_8_16"], "train.epochs=30"]
            options += [*write_lists(mouths, lists, [task]), f"model.weights={whole}/last.pt"]
        command("train", flexible, *options, *common, f"log.output={folder}")
        listed = lists / ("val.csv" if task == "films" else "test.csv")
        found = {"right": online(f"{folder}/last.pt", listed, root)}
        if task == "digit":
            found["delays"] = spotted(f"{whole}/last.pt", listed, root)
        result.write_text(json.dumps(found))


def table(output: Path, name: Path) -> None:
    """Write the tables of the seeds that both forms have, their numbers, and the figure."""
    paths = [{p.suffixes[-2] for p in output.glob(f"digit.{form}.*.json")} for form in FORMS]
    seeds = sorted(set.intersection(*paths))
    lines, numbers = ["# Causal and bidirectional networks", "", f"Seeds: {len(seeds)}.", ""], {}
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.6), layout="constrained")

    def read(task: str, form: str, key: str) -> list:
        files = [output / f"{task}.{form}{seed}.json" for seed in seeds]
        return [json.loads(file.read_text())[key] for file in files]

    for task, axis in zip(TASKS, axes, strict=False):
        right = {}
        for form in FORMS:
            runs = read(task, form, "right")
            right |= {k: np.array([one[k] for one in runs]).swapaxes(0, 1) for k in runs[0]}
        scores = {key: [*map(interval, values)] for key, values in right.items()}
        both = right["causal, stride 1"] - right["bidirectional, nearest sub-network"]
        numbers[task] = scores | {"causal - bidirectional, nearest": [*map(interval, both)]}
        lines += [f"| {task}, top-1 (%) after frame | {' | '.join(map(str, range(1, 17)))} |"]
        lines += ["|---" * (FRAMES + 1) + "|"]
        for key, row in numbers[task].items():
            form, step = POINTS if " - " in key else SCORES, FRAMES // len(row)
            cells = [form.format(*row[n // step]) if n % step == 0 else "" for n in range(FRAMES)]
            lines.append(f"| {key} | {' | '.join(cells)} |")
        lines.append("")
        for key, row in scores.items():
            seen = np.arange(0, FRAMES, FRAMES // len(row)) + 1
            axis.plot(seen / FRAMES, [mean for mean, *_ in row], label=key)
        axis.set(title=task, xlabel="share of the clip that was seen", ylim=(0, 100))
        axis.grid(alpha=0.3)
    head = ["digits in sentences, threshold", *map(str, THRESHOLDS)]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    runs = {f"{form}, {n} frames": (form, f"{n} frames") for form in FORMS for n in WINDOWS[form]}
    for key, (form, window) in runs.items():
        delays = np.array([one[window] for one in read("digit", form, "delays")], float)
        found = 100 * np.isfinite(delays).mean((0, 2))  # of (seeds, thresholds, sentences)
        mean = np.nansum(delays, (0, 2)) / np.isfinite(delays).sum((0, 2)).clip(1)
        numbers[f"spotting, {key}"] = {"found": found.tolist(), "delay": mean.tolist()}
        lines.append(f"| {key}: found (%) | {' | '.join(f'{one:.1f}' for one in found)} |")
        cells = [f"{one:.2f}" if share else "" for one, share in zip(mean, found, strict=True)]
        lines.append(f"| {key}: mean delay (s) | {' | '.join(cells)} |")
        shown = found > 5  # the mean of a few says little
        axes[3].plot(mean[shown], found[shown], marker=".", label=key)
    axes[3].set(title="digits in sentences", xlabel="mean delay (s)", ylim=(0, 100))
    axes[0].set(ylabel="top-1 accuracy (%)")
    for axis in axes[[1, 3]]:
        axis.legend(fontsize=7, loc="upper left")
    figure.savefig(name.with_suffix(".png"), dpi=140)
    name.with_suffix(".md").write_text("\n".join([*lines, ""]))
    name.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        motion, mouths, output, *seeds = sys.argv[2:]
        for seed, form in product(map(int, seeds or "012"), FORMS):
            run(*(Path(one).absolute() for one in (motion, mouths, output)), form, seed)
    else:
        table(*map(Path, sys.argv[2:]))
