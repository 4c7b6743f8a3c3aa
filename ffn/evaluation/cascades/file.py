"""A fitted cascade as a safetensors file: tensors, and JSON in the metadata."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ffn.evaluation.cascades.calibration import Calibration
from ffn.evaluation.cascades.cascade import Cascade
from ffn.evaluation.cascades.fit import CascadeFit, Point
from ffn.files import atomic_write

FORMAT = 1
TENSORS = ("scales", "matrices", "bias")
KEPT_POINTS = 64  # cascades beside the chosen one, for reports


@dataclass(frozen=True)
class CascadeFile:
    """A cascade of a network, with the others that its fit found.

    Attributes:
        fit: calibrations, and up to `KEPT_POINTS` cascades.
        chosen: the cascade that serves.
        weights_sha256: of the tensors of the network, see :func:`ffn.zoo.state_sha256`.
        network: its name.
        classes: K class names.
        seen: digests (N,) of the paths of the videos of the fit.
    """

    fit: CascadeFit
    chosen: Point
    weights_sha256: str
    network: str
    classes: tuple[str, ...]
    seen: Tensor

    @property
    def cascade(self) -> Cascade:
        """The cascade that serves."""
        return self.fit.cascade(self.chosen)

    def check_network(self, weights_sha256: str, name: str) -> None:
        """Check that the cascade belongs to a network.

        Raises:
            ValueError: it was fitted to another one.
        """
        if weights_sha256 != self.weights_sha256:
            raise ValueError(
                f"the cascade belongs to {self.network} with SHA-256 {self.weights_sha256[:12]}…; "
                f"{name} has {weights_sha256[:12]}…. Fit a cascade to these weights with "
                f"ffn cascade fit"
            )

    def check_new(self, paths: Sequence[str]) -> None:
        """Check that the cascade was not fitted to any of these videos.

        Paths are compared as they are, as absolute ones, and as relative to the current folder.

        Raises:
            ValueError: it was.
        """
        seen = torch.zeros(len(paths), dtype=torch.bool)
        for written in (paths, [*map(os.path.abspath, paths)], [*map(os.path.relpath, paths)]):
            seen |= torch.isin(path_digests(written), self.seen)
        known = int(seen.sum())
        if known:
            raise ValueError(
                f"{known} of {len(paths)} videos are among the {len(self.seen)} that the cascade "
                "was fitted to, and would be counted too well. Give predictions for other videos"
            )

    def save(self, path: Path) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        tensors = {"seen": self.seen}
        for stack, calibration in self.fit.calibrations.items():
            for name in TENSORS:
                tensors[f"{_name(stack)}.{name}"] = getattr(calibration, name).contiguous()
        points = self.fit.points
        kept = torch.linspace(0, len(points) - 1, min(len(points), KEPT_POINTS)).round().int()
        content = {
            "format": FORMAT,
            "network": self.network,
            "weights_sha256": self.weights_sha256,
            "classes": self.classes,
            "chosen": asdict(self.chosen),
            "videos": self.fit.videos,
            "gmacs": self.fit.gmacs,
            "raw": self.fit.raw,
            "penalties": {  # JSON has no infinity
                _name(stack): str(c.penalty) for stack, c in self.fit.calibrations.items()
            },
            "points": [asdict(points[n]) for n in kept.tolist()],
        }
        with atomic_write(path) as file:
            file.write(safetensors.torch.save(tensors, {"cascade": json.dumps(content)}))

    @classmethod
    def load(cls, path: Path) -> CascadeFile:
        """Read the file of :meth:`save`.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not such a file.
        """
        expected = "expected the file of ffn cascade fit"
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}; {expected}")
        try:
            with safe_open(path, framework="pt") as file:
                content = json.loads((file.metadata() or {})["cascade"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if not isinstance(content, dict):
                raise TypeError(f"the metadata is a {type(content).__name__}")
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no cascade; {expected}") from error
        if content.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {content.get('format')!r}; {expected}, format {FORMAT}"
            )
        try:
            return cls._from(content, tensors)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); {expected}") from error

    @classmethod
    def _from(cls, content: dict[str, Any], tensors: dict[str, Tensor]) -> CascadeFile:
        calibrations = {
            tuple(map(int, stack.split("_"))): Calibration(
                *(tensors[f"{stack}.{name}"] for name in TENSORS), float(penalty)
            )
            for stack, penalty in content["penalties"].items()
        }
        fit = CascadeFit(
            {int(count): gmacs for count, gmacs in content["gmacs"].items()},
            content["videos"],
            calibrations,
            tuple(map(_point, content["points"])),
            {int(count): accuracy for count, accuracy in content["raw"].items()},
        )
        file = cls(
            fit,
            _point(content["chosen"]),
            content["weights_sha256"],
            content["network"],
            tuple(content["classes"]),
            tensors["seen"],
        )
        for calibration in file.cascade.calibrations:
            _check_shapes(calibration, len(file.classes))
        return file


def path_digests(paths: Sequence[str]) -> Tensor:
    """The first 8 bytes of the SHA-256 of each path, as int64 (N,)."""
    digests = (hashlib.sha256(path.encode("utf-8", "surrogateescape")) for path in paths)
    return torch.tensor([int.from_bytes(d.digest()[:8], "big", signed=True) for d in digests])


def _name(stack: Sequence[int]) -> str:
    return "_".join(map(str, stack))


def _point(content: dict[str, Any]) -> Point:
    stages, thresholds = tuple(content["stages"]), tuple(content["thresholds"])
    whole = all(type(count) is int for count in stages)
    if not stages or not whole or [*stages] != sorted({*stages}) or stages[0] < 1:
        raise ValueError(f"stages {stages}")
    if len(thresholds) != len(stages) - 1 or not all(map(math.isfinite, thresholds)):
        raise ValueError(f"thresholds {thresholds} of {len(stages)} stages")
    return Point(stages, thresholds, float(content["accuracy"]), float(content["gmacs"]))


def _check_shapes(calibration: Calibration, classes: int) -> None:
    """Raise ValueError for tensors that do not fit together."""
    count = len(calibration.scales)
    if calibration.matrices.shape != (count, classes, classes) or len(calibration.bias) != classes:
        raise ValueError(f"matrices of shape {tuple(calibration.matrices.shape)}")
