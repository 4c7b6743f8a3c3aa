"""The output folder of a cross-validation.

::

    plan.json                       config, clips with their groups and folds; written first
    classes.txt                     class names
    folds/fold_0/train.csv          lists of a fold, and test.csv
    seed_0/fold_0.yaml              config of a training
    seed_0/fold_0.log               console output of its training and tests
    seed_0/fold_0/                  its run folder
    seed_0/fold_0/test/             predictions of its last weights for the clips of the fold
    seed_0/fold_0/test_shuffled/    the same for clips with their frames in random order
    seed_0.predictions.safetensors  predictions for all clips, each by the network of its fold
    results.json                    accuracies and intervals
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ffn.evaluation.cross_validation import CrossValidation
from ffn.evaluation.report import load_predictions, write_predictions
from ffn.evaluation.results import Predictions
from ffn.files import write_text

FORMAT = 1  # of plan.json and results.json


@dataclass(frozen=True)
class Reported:
    """What the numbers of a cross-validation are of; see `CrossValidationFolder.load`.

    Attributes:
        trained_frames: frame counts of the training.
        seeds: of the trainings.
        frames: frame counts of the tests.
        shuffled: whether clips with shuffled frames were tested too.
        class_groups: names of the classes of each group.
    """

    trained_frames: Sequence[int] = ()
    seeds: Sequence[int] = ()
    frames: Sequence[int] = ()
    shuffled: bool = False
    class_groups: Sequence[Sequence[str]] = ()


class CrossValidationFolder:
    """Paths and content of the output folder of a cross-validation.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results.json"
        self.classes = path / "classes.txt"
        self.lists = path / "folds"

    def config(self, seed: int, fold: int) -> Path:
        """Config of a training."""
        return self.path / f"seed_{seed}" / f"fold_{fold}.yaml"

    def run(self, seed: int, fold: int) -> Path:
        """Run folder of a training."""
        return self.path / f"seed_{seed}" / f"fold_{fold}"

    def test(self, seed: int, fold: int, *, shuffled: bool) -> Path:
        """Folder for the test of a training."""
        return self.run(seed, fold) / ("test_shuffled" if shuffled else "test")

    @property
    def has_plan(self) -> bool:
        """Whether a cross-validation has begun here."""
        return (self.path / "plan.json").exists()

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write plan.json.

        Args:
            plan: ``config``, ``classes``, ``fingerprint``, and ``path``, ``label``, ``group``,
                ``fold`` of every clip, and more for the reader.
        """
        _write(self.path / "plan.json", plan)
        self.__dict__.pop("plan", None)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The content of plan.json.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not such a file.
        """
        return _read(self.path / "plan.json", ("classes", "path", "label", "group", "fold"))

    def predictions(
        self, seed: int, fold: int, frames: Sequence[int], *, shuffled: bool = False
    ) -> Predictions | None:
        """Predictions for the clips of a fold; None if they are missing or of other clips."""
        clips = self._clips(fold)
        found = sorted(self.test(seed, fold, shuffled=shuffled).glob("*.predictions.safetensors"))
        if not found:
            return None
        try:
            kept = load_predictions(found[0])
        except (SafetensorError, KeyError, TypeError, ValueError):
            return None  # tested again
        paths = [self.plan["path"][i] for i in clips]
        same = len(kept.paths) == len(paths) and all(
            whole.endswith(part) for whole, part in zip(kept.paths, paths, strict=True)
        )
        same = same and kept.label.tolist() == [self.plan["label"][i] for i in clips]
        return kept if same and set(frames) <= set(kept.logits) else None

    def load(
        self,
        name: str,
        *,
        trained_frames: Sequence[int],
        seeds: Sequence[int],
        frames: Sequence[int],
        shuffled: bool,
        class_groups: Sequence[Sequence[str]] = (),
    ) -> CrossValidation:
        """Join the predictions of all folds and seeds.

        Raises:
            ValueError: a fold is not finished.
        """
        plan = self.plan
        kinds = [False, True] if shuffled else [False]
        logits = {kind: {t: [] for t in frames} for kind in kinds}
        for seed in seeds:
            for kind in kinds:
                joined = self._joined(seed, frames, kind)
                for t in frames:
                    logits[kind][t].append(joined[t])
        stacked = {kind: {t: torch.stack(x) for t, x in logits[kind].items()} for kind in kinds}
        index = {label: i for i, label in enumerate(plan["classes"])}
        return CrossValidation(
            name=name,
            trained_frames=tuple(trained_frames),
            seeds=tuple(seeds),
            classes=tuple(plan["classes"]),
            paths=tuple(plan["path"]),
            label=torch.tensor(plan["label"]),
            groups=tuple(plan["group"]),
            folds=tuple(plan["fold"]),
            fingerprint=plan["fingerprint"],
            logits=stacked[False],
            shuffled=stacked.get(True),
            class_groups=tuple(tuple(index[label] for label in group) for group in class_groups),
        )

    def write_predictions(self, found: CrossValidation) -> None:
        """Write the predictions of each seed for all clips, each by the network of its fold.

        Args:
            found: of :meth:`load`.
        """
        for place, seed in enumerate(found.seeds):
            logits = {frames: x[place] for frames, x in found.logits.items()}
            ok = ~torch.stack([x.isnan().any(1) for x in logits.values()]).any(0)
            fold = self.predictions(seed, found.folds[0], [*logits])
            name, protocol = f"{found.name}.s{seed}", fold.protocol if fold else None
            joined = Predictions(found.paths, found.label, ok, logits, name=name, protocol=protocol)
            write_predictions(joined, self.path / f"seed_{seed}.predictions.safetensors")

    def write_results(self, content: dict[str, Any]) -> Path:
        """Write results.json; ``content`` has the arguments of :meth:`load`."""
        _write(self.results, content)
        return self.results

    def reported(self) -> Reported:
        """What results.json reports; nothing if there is no such file.

        Raises:
            ValueError: it is damaged.
        """
        if not self.results.is_file():
            return Reported()
        content = _read(self.results, ("trained_frames", "seeds", "rows"))
        return Reported(
            trained_frames=content["trained_frames"],
            seeds=content["seeds"],
            frames=[row["frames"] for row in content["rows"]],
            shuffled="top1_shuffled" in content["rows"][0],
            class_groups=content.get("class_groups", {"groups": []})["groups"],
        )

    def load_finished(self, name: str) -> CrossValidation:
        """Join the predictions that belong to results.json.

        Raises:
            OSError: a file is missing.
            ValueError: a file is damaged, or a fold is not finished.
        """
        if not self.results.is_file():
            raise FileNotFoundError(
                f"{self.path} has no results.json; run ffn crossvalidate with this "
                "--output to its end"
            )
        return self.load(name, **vars(self.reported()))

    def _clips(self, fold: int) -> list[int]:
        return [i for i, own in enumerate(self.plan["fold"]) if own == fold]

    def _joined(self, seed: int, frames: Sequence[int], shuffled: bool) -> dict[int, torch.Tensor]:
        """Logits (N, K) of all clips from the networks of one seed, per frame count."""
        number, classes = len(self.plan["path"]), len(self.plan["classes"])
        joined = {t: torch.full((number, classes), torch.nan) for t in frames}
        for fold in sorted(set(self.plan["fold"])):
            kept = self.predictions(seed, fold, frames, shuffled=shuffled)
            if kept is None:
                raise ValueError(
                    f"{self.path}: fold {fold} of seed {seed} has no predictions for its clips at "
                    f"{' '.join(map(str, frames))} frames; run ffn crossvalidate with "
                    "this --output again"
                )
            for t in frames:
                joined[t][self._clips(fold)] = kept.logits[t]
        return joined


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps({"format": FORMAT, **content}, indent=1, ensure_ascii=False)
    write_text(path, text + "\n")


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    expected = "expected a file that ffn crossvalidate wrote"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: not valid JSON ({error}). Restore it; ffn crossvalidate "
            "writes results.json again if you remove it"
        ) from error
    try:
        found = content["format"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of a cross-validation; {expected}") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found!r}; {expected}, format {FORMAT}")
    missing = [key for key in keys if key not in content]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}; {expected}")
    return content
