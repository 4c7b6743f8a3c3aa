"""Run a network at any frame count, by the runtime and in the precision that are fastest here."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible
from ffn.devices import describe_device, has_bf16
from ffn.export.formats import ExportError, Run
from ffn.export.fuse import TOLERANCE, FuseError
from ffn.export.runtimes import FILES, PRECISIONS, RUNTIMES, available, check_runtime
from ffn.files import write_text
from ffn.version import __version__

# Built networks in memory: a test at 20 counts uses all in turn.
KEPT_BYTES = 2**31
KEPT = 8  # of larger networks
# Largest difference of an output in bf16, fp16 and TF32, relative to the largest: rounding moves
# those of networks with random weights by up to 0.06.
HALF_TOLERANCE = 0.25
LEAST_GAIN = 0.9  # of the time in fp32, above which bf16 is not chosen
ROUNDS = 3  # timed passes of each candidate

_log = logging.getLogger(__name__)


class InferenceRunner:
    """Runs the network for the T of a clip by one of the runtimes.

    Several threads may call it. The first clip of each T also runs through the network as trained,
    in fp32, since a network of others may do something else for this T. If the answers differ by
    more than rounding, a warning says so, and the network as trained runs for all clips of this T.
    "auto" is resolved by the first call. Where there is a choice, the candidates are timed on its
    clip; a file keeps the result for later processes.

    Args:
        model: in eval mode.
        runtime: "torch", "compile" (``torch.compile``; the first clip of every shape takes long),
            "onnxruntime", "openvino", "unfused" (the model as trained in torch, under autocast for
            a precision other than fp32), or "auto": the fastest that is installed.
        precision: "fp32", "bf16", "fp16" or "auto". On a CPU with fast bf16 operators, "auto" is
            measured; on other CPUs it is fp32; on CUDA bf16, or fp16 on cards without it.
        cache: folder of the file with measurements; None: every process measures.

    Raises:
        ValueError: an unknown runtime or precision, or one that this device excludes.
        ImportError: the runtime needs an extra that is not installed.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        runtime: str = "torch",
        precision: str = "auto",
        cache: Path | None = None,
    ) -> None:
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.runtime, self.precision = runtime, precision
        self._model, self._cache = model, cache
        self._time = model.frame_dim if isinstance(model, FrameFlexible) else 2
        self._runs: OrderedDict[tuple, Run] = OrderedDict()
        self._checked: dict[tuple, Run] = {}  # the one that answers, per T
        self._lock = threading.Lock()
        self._check_options()

    def __call__(self, clip: Tensor) -> Tensor:
        """Logits (B, K) in fp32 of clips (B, C, T, H, W)."""
        return self._run_for(clip)(clip)

    def prepare(self, clip: Tensor) -> None:
        """Build the network for a clip, unless it exists, so that the next call does not."""
        self._run_for(clip)

    def __str__(self) -> str:
        return f"{self.runtime}, {self.precision}"

    def describe(self) -> str:
        """How the network runs where, for files of measurements."""
        size = sum(p.numel() for p in self._model.parameters())
        network = f"{type(self._model).__name__} of {size} parameters"
        software = f"torch {torch.__version__}, ffn {__version__}"
        return f"{network}, {self}, {describe_device(self.device)}, {software}"

    def select(self, frames: int) -> int | None:
        """The count of the sub-network for a number of frames; None for a plain network."""
        return self._model.select(frames) if isinstance(self._model, FrameFlexible) else None

    def _check_options(self) -> None:
        allowed = {"runtime": ("auto", *RUNTIMES), "precision": ("auto", *PRECISIONS)}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f'{name} is "{getattr(self, name)}"; allowed: {", ".join(values)}')
        if self.runtime == "auto":
            return
        device = self.device.type
        check_runtime(self.runtime, device)
        if not self._precisions(self.runtime):
            raise ValueError(
                f"precision is {self.precision}, which {self.runtime} does not have on {device}; "
                "choose fp32, or another runtime"
            )
        is_half = self.precision in ("bf16", "fp16") and device == "cpu"
        has_3d = any(isinstance(m, nn.Conv3d) for m in self._model.modules())
        if is_half and has_3d and self.runtime == "unfused":
            raise ValueError(
                f"precision is {self.precision}, in which torch's 3-D convolutions are wrong on a "
                "CPU; choose fp32, or another runtime, which keeps them in fp32"
            )

    def _precisions(self, runtime: str) -> list[str]:
        """The precisions of a runtime that are candidates here; none if it lacks the given one."""
        has = {"onnxruntime": ("fp32",), "openvino": ("fp32", "bf16")}.get(runtime, (*PRECISIONS,))
        if self.precision != "auto":
            return [self.precision] * (self.precision in has)
        if runtime == "unfused":
            return ["fp32"]
        if self.device.type == "cuda":
            emulated = {"including_emulation": False}
            return ["bf16" if torch.cuda.is_bf16_supported(**emulated) else "fp16"]
        is_measured = self.device.type == "cpu" and has_bf16()
        return [p for p in has if p == "fp32" or (p == "bf16" and is_measured)]

    def _run_for(self, clip: Tensor) -> Run:
        """What runs a clip; built by the first thread that needs it."""
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if "auto" in (self.runtime, self.precision):
                self._resolve(clip.clone())
            frames = clip.shape[self._time]
            key = (self.select(frames), *(clip.shape[1:] if self.runtime in FILES else ()))
            if key not in self._runs:
                self._runs[key] = self._build(self.runtime, self.precision, clip.clone())
                size = 4 * sum(p.numel() for p in self._model.parameters())
                while len(self._runs) > max(KEPT, KEPT_BYTES // max(size, 1)):
                    self._runs.popitem(last=False)
            self._runs.move_to_end(key)
            run = self._runs[key]
            if self.runtime == "unfused":
                return run
            if frames not in self._checked:
                self._checked[frames] = self._is_right(run, clip.clone())
            return run if self._checked[frames] else self._as_trained

    def _build(self, runtime: str, precision: str, clip: Tensor) -> Run:
        try:
            return RUNTIMES[runtime](self._model, clip.shape[self._time], clip, precision)
        except FuseError as error:
            _log.warning("the network runs as trained, which is slower: %s", error)
            return self._as_trained

    def _as_trained(self, clip: Tensor) -> Tensor:
        with torch.no_grad():
            return self._model(clip).float()

    def _is_right(self, run: Run, clip: Tensor) -> bool:
        """Whether a built network answers as the one as trained for this length; else warn."""
        expected, found = self._as_trained(clip), run(clip)
        largest, difference = expected.abs().max(), (found - expected).abs().max()
        is_exact = self.precision == "fp32" and not clip.is_cuda  # there, fp32 may be TF32
        tolerance = TOLERANCE if is_exact else HALF_TOLERANCE
        if not difference.isfinite() or difference <= tolerance * largest:
            return True  # infinite in fp16, or of damaged weights: the caller reports them
        _log.warning(
            "for %d frames, %s (%s) differs from the network as trained by %.1e of the largest "
            "output; clips of this length run through the network as trained, which is slower",
            *(clip.shape[self._time], type(self._model).__name__, self, difference / largest),
        )
        return False

    def _resolve(self, clip: Tensor) -> None:
        """Replace "auto" by the fastest runtime and precision for a clip."""
        device = self.device.type
        names = [self.runtime] if self.runtime != "auto" else available(device)
        candidates = [(name, p) for name in names for p in self._precisions(name)]
        if len(candidates) > 1:
            shape = "x".join(map(str, clip.shape))
            options = "; ".join(" ".join(pair) for pair in candidates)
            key = f"{self.describe()}, {shape}, {options}"
            path = self._cache / "runtimes.json" if self._cache else None
            chosen = measured_once(path, key, lambda: self._fastest(candidates, clip))
            candidates = [tuple(chosen.split())]
        if not candidates:
            raise ValueError(f"no runtime for precision {self.precision} on {device}")
        self.runtime, self.precision = candidates[0]

    def _fastest(self, candidates: Iterable[tuple[str, str]], clip: Tensor) -> str:
        """The candidate of the shortest time; bf16 must be faster by a tenth."""
        runs: dict[tuple[str, str], Run] = {}
        for name, precision in candidates:
            try:
                run = self._build(name, precision, clip)
                run(clip)  # warms up
                runs[name, precision] = run
            except (ExportError, RuntimeError) as error:
                if name == "torch":
                    raise
                _log.warning("%s cannot run the network: %.200s", name, error)
        best = dict.fromkeys(runs, float("inf"))
        for key, run in [*runs.items()] * ROUNDS:  # alternately
            started = time.perf_counter()
            run(clip).cpu()  # waits for a GPU
            best[key] = min(best[key], time.perf_counter() - started)
        cost = {key: ms / (LEAST_GAIN if key[1] == "bf16" else 1) for key, ms in best.items()}
        return " ".join(min(cost, key=cost.get))


def measured_once(path: Path | None, key: str, measure: Callable[[], Any]) -> Any:
    """A measurement, of plain values, that a JSON file keeps by its key for later processes.

    Without a path, every process measures.
    """
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError):  # no file, or a damaged one
        known = {}
    if key not in known:
        known[key] = measure()
        try:
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps(known, indent=1) + "\n")
        except OSError as error:
            _log.warning("cannot keep measurements in %s: %s. Set FFN_HOME", path, error)
    return known[key]
