"""Sentences of one speaker at 25, 12.5 and 6.25 frames per second: one network and separate ones.

    python experiments/words.py cut GRID MOUTHS
    python experiments/sentences.py run MOUTHS OUTPUT [SEED …]
    python experiments/sentences.py table OUTPUT model_zoo/results/sentences

GRID holds sentences.csv of `ffn prepare grid` beside the lists of words. A sentence is a sequence
of six of 51 words in three seconds. `run` trains a network of 8 frames on all words of 600
sentences (or takes that of words.py in OUTPUT), then a head over time on its frozen features; each
network starts from both. It tests on the 162 other sentences, skips what OUTPUT holds, and writes
the numbers of errors per sentence into OUTPUT/sentences/NETWORK.SEED.json. `table` writes NAME.md
and NAME.json.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from itertools import product
from pathlib import Path

import jiwer
import numpy as np
from words import POINTS, SCORES, all_words, ffn, interval, write_lists

RATES = {75: "25 fps", 38: "12.5 fps", 19: "6.25 fps"}  # by frames of three seconds
FRAMES = (19, 25, 30, 38, 50, 60, 75)
CONFIG = "configs/quickstart/spelling_ctc.yaml"
NETWORKS = {"flexible": ["task.frames=[19,38,75]"]}
NETWORKS |= {f"separate_{n}": [f"task.frames=[{n}]"] for n in RATES}
SENTENCES = ["model.name=tsm_tiny", "data.labels=words", "task.hidden=128", "task.upsample=1"]
SENTENCES += ["data.crop=32", "data.resize=32", "data.scales=[1.0,0.89,0.78]"]
SENTENCES += ["data.cache_gib=4", "data.test_frames=[38]", "train.batch_size=8"]
HEAD = ["train.freeze=[backbone]", "optim.lr=3e-3", "train.epochs=10", "train.validate_epochs=10"]
RECIPE = ["optim.lr=7e-4", "train.epochs=16", "train.validate_epochs=16"]
DECODERS = {
    "greedy": ["--frames", *map(str, FRAMES)],
    "beam": ["--frames", *map(str, RATES), "--beams", "20"],
}


def run(root: Path, output: Path, name: str, seed: int) -> None:
    """Train and test a network, unless its result exists."""
    folder = output / "sentences" / f"{name}.{seed}"
    result, head = folder.with_name(f"{folder.name}.json"), folder.with_name(f"head.{seed}")
    if result.exists():
        return
    same = [*SENTENCES, *write_lists(root, folder.parent, ["sentences"]), f"train.seed={seed}"]
    words = f"model.weights={all_words(root, output, seed)}"
    ffn("train", CONFIG, *NETWORKS["separate_38"], *HEAD, *same, words, f"log.output={head}")
    options = [*NETWORKS[name], *RECIPE, *same, f"model.weights={head}/last.pt"]
    begin = time.time()
    ffn("train", CONFIG, *options, f"log.output={folder}")
    written = {"seconds": round(time.time() - begin), "options": options}
    for kind, flags in DECODERS.items():
        weights = ["--weights", f"{folder}/last.pt", "--output", f"{folder}/{kind}", "--overwrite"]
        ffn("test", f"{folder}/config.yaml", *weights, "--save-predictions", "--no-latency", *flags)
        written[kind] = errors(next((folder / kind).glob("*.predictions.csv")))
    result.write_text(json.dumps(written))


def errors(path: Path) -> dict[str, dict[str, list[float]]]:
    """By measure and frames, the errors per sentence over the mean number of words or characters.

    Their means are WER and CER.
    """
    found: dict[str, dict[str, list[float]]] = {"WER": {}, "CER": {}}
    units = {"WER": jiwer.process_words, "CER": jiwer.process_characters}
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    for measure, frames in product(units, {row["frames"]: None for row in rows}):
        pairs = [(row["text"], row["prediction"]) for row in rows if row["frames"] == frames]
        every = [units[measure](*pair) for pair in pairs]
        wrong = np.array([one.substitutions + one.deletions + one.insertions for one in every])
        length = np.mean([one.hits + one.substitutions + one.deletions for one in every])
        found[measure][frames] = (wrong / length).tolist()
    return found


def table(output: Path, name: Path) -> None:
    """Write the tables and their numbers."""
    paths = {n: {p.suffixes[0]: p for p in output.glob(f"sentences/{n}.*.json")} for n in NETWORKS}
    seeds = sorted(set.intersection(*map(set, paths.values())))
    read = {n: [json.loads(paths[n][seed].read_text()) for seed in seeds] for n in NETWORKS}
    lines, numbers = ["# Sentences of one speaker at 25, 12.5 and 6.25 frames per second", ""], {}
    lines += [f"Mean of {len(seeds)} seeds, 162 sentences.", ""]

    def values(network: str, decoder: str, measure: str, frames: int) -> np.ndarray:
        return np.array([one[decoder][measure][str(frames)] for one in read[network]])

    def add(title: str, columns: list[str], rows: dict[str, list[np.ndarray]]) -> None:
        found = {key: [*map(interval, row)] for key, row in rows.items()}
        numbers[title] = dict(zip(["columns", *found], [columns, *found.values()], strict=True))
        lines.extend([f"| {' | '.join([title, *columns])} |", "|---" * (len(columns) + 1) + "|"])
        for key, row in found.items():
            form = POINTS if " - " in key else SCORES
            lines.append(f"| {key} | {' | '.join(form.format(*cell) for cell in row)} |")
        lines.append("")

    for decoder, measure in product(DECODERS, ("WER", "CER")):
        one = [values("flexible", decoder, measure, n) for n in RATES]
        other = [values(f"separate_{n}", decoder, measure, n) for n in RATES]
        both = {"one network": one, "separate networks": other}
        both["one - separate"] = [a - b for a, b in zip(one, other, strict=True)]
        add(f"{measure} (%), {decoder}", [*RATES.values()], both)
    every = {n: [values(n, "greedy", "WER", t) for t in FRAMES] for n in NETWORKS}
    add("WER (%), greedy, by frames", [*map(str, FRAMES)], every)
    name.with_suffix(".md").write_text("\n".join(lines))
    name.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    command, source, target, *seeds = sys.argv[1:]
    if command == "run":
        for seed, name in product(map(int, seeds or "012"), NETWORKS):
            run(Path(source).absolute(), Path(target).absolute(), name, seed)
    else:
        table(Path(source), Path(target))
