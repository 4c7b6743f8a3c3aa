"""Run a network at any frame count: one fused network per sub-network, in the best precision."""

from __future__ import annotations

import copy
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible, extract
from ffn.devices import NO_COMPILER, SLOW_BF16, describe_device, has_bf16, has_compiler
from ffn.export.fuse import TOLERANCE, DifferenceError, fuse
from ffn.export.graphs import Compiled, CudaGraphs
from ffn.export.packing import can_pack, pack
from ffn.files import write_text
from ffn.version import __version__

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Fused networks in memory: interpolated counts have one each. A test at 20 counts uses all in turn,
# so that a limit below 20 would build each of them again for every batch.
KEPT_BYTES = 2**31
KEPT = 8  # of larger networks
# Largest difference of an output in bf16, fp16 and TF32, relative to the largest: rounding moves
# those of networks with random weights by up to 0.06.
HALF_TOLERANCE = 0.25

_log = logging.getLogger(__name__)


class Networks:
    """Runs the network for the T of a clip, fused and in the chosen precision.

    Several threads may call it. The first clip of each T also runs through the network as trained,
    in fp32, since a network of others may do something else for this T. If the answers differ by
    more than rounding, a warning says so, and the network as trained runs for all clips of this T.
    So it does for all clips of a sub-network whose fused form differs.
    ``precision="auto"`` is resolved by the first call: on a CPU with fast bf16 operators by a
    measurement, which a file keeps for later processes, on other CPUs fp32; on CUDA, bf16 or else
    fp16.

    Args:
        model: in eval mode.
        precision: "auto", "fp32", "bf16" or "fp16".
        fused: fold norms and choose operators, see :func:`ffn.fuse`. Otherwise the model itself
            runs, under autocast for a precision other than fp32.
        compiled: compile with ``torch.compile``; the first clip of every length takes long.
        cuda_graphs: launch the kernels of a forward pass together, see
            :class:`ffn.export.graphs.CudaGraphs`; for fused networks on CUDA.
        cache: folder of the file with measurements; None: every process measures.

    Raises:
        ValueError: an unknown precision; no C++ compiler to compile with; or CUDA graphs without
            a CUDA device or fusion.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        precision: str = "auto",
        fused: bool = True,
        compiled: bool = False,
        cuda_graphs: bool = False,
        cache: Path | None = None,
    ) -> None:
        if precision not in ("auto", *PRECISIONS):
            allowed = ", ".join(["auto", *PRECISIONS])
            raise ValueError(f'precision is "{precision}"; allowed: {allowed}')
        device = next((p.device.type for p in model.parameters()), "cpu")
        if compiled and device == "cpu" and not has_compiler():
            raise ValueError(f"{NO_COMPILER}. Install one, or do not compile the network")
        if cuda_graphs and (device != "cuda" or not fused):
            state = "fused" if fused else "not fused"
            raise ValueError(
                "CUDA graphs are for fused networks on a CUDA device; this one is on device "
                f"{device} and {state}. Choose a CUDA device and fusion, or leave out CUDA graphs"
            )
        self.precision, self.fused, self.compiled = precision, fused, compiled
        self.cuda_graphs = cuda_graphs
        self._model, self._cache = model, cache
        self._networks: OrderedDict[int, nn.Module] = OrderedDict()
        self._dropped: set[int] = set()
        self._unfused: set[int] = set()  # counts of sub-networks that cannot be fused
        self._differs: dict[int, bool] = {}  # per T, whether the network as trained runs
        self._time = model.frame_dim if isinstance(model, FrameFlexible) else 2
        self._warned = False
        self._packable = True  # until a network is not
        self._lock = threading.Lock()

    def __call__(self, clip: Tensor) -> Tensor:
        """Logits (B, K) in fp32 of clips (B, C, T, H, W)."""
        network = self._network(clip)
        if self._differs.get(clip.shape[self._time]):
            return self._model(clip).float()
        dtype = PRECISIONS[self.precision]
        if self.fused:
            return network(clip.to(dtype)).float()
        with torch.autocast(clip.device.type, dtype=dtype, enabled=self.precision != "fp32"):
            return network(clip).float()

    def prepare(self, clip: Tensor) -> None:
        """Build the network for a clip, unless it exists, so that the next call does not."""
        self._network(clip)

    def __str__(self) -> str:
        words = ["fused"] * self.fused + [self.precision] + ["compiled"] * self.compiled
        return ", ".join(words + ["CUDA graphs"] * self.cuda_graphs)

    def describe(self, device: torch.device) -> str:
        """How the network runs where, for files of measurements; after the first call."""
        packed = ", packed" * self._packs(device)
        size = f"{type(self._model).__name__} of {_size(self._model)} parameters"
        return f"{size}, {self}{packed}, {_machine(device)}"

    def select(self, frames: int) -> int | None:
        """The count of the sub-network for a number of frames; None for a plain network."""
        return self._model.select(frames) if isinstance(self._model, FrameFlexible) else None

    def _network(self, clip: Tensor) -> nn.Module:
        """The network for a clip; built by the first thread that needs it."""
        frames = clip.shape[self._time]
        count = self.select(frames) or 0
        with self._lock:
            if count not in self._networks:
                self._warn_of_repetition(count)
                self._networks[count] = self._build_or_warn(count, clip)
                while len(self._networks) > self._most():
                    self._dropped.add(self._networks.popitem(last=False)[0])
            self._networks.move_to_end(count)
            network = self._networks[count]
            if self.fused and frames not in self._differs:
                given = clip if self.compiled or self.cuda_graphs else clip[:1]  # one graph
                self._differs[frames] = count in self._unfused or self._is_other(network, given)
            return network

    def _build_or_warn(self, count: int, clip: Tensor) -> nn.Module:
        """The network of a sub-network; the network as trained if its fused form differs."""
        try:
            return self._build(clip.shape[self._time], clip)
        except DifferenceError as error:
            self._unfused.add(count)
            if self.precision == "auto":
                self.precision = "fp32"
            _log.warning(
                "for %d frames, the network runs as trained, which is slower: %s",
                *(clip.shape[self._time], error),
            )
            return self._model

    def _is_other(self, network: nn.Module, clip: Tensor) -> bool:
        """Whether a network differs from the one as trained for this length; if so, warn."""
        dtype = PRECISIONS[self.precision]
        with torch.inference_mode(False), torch.no_grad():
            clip = clip.clone()
            expected, found = self._model(clip), network(clip.to(dtype)).float()
        largest = expected.abs().max()
        difference = (found - expected).abs().max()
        is_exact = dtype is torch.float32 and not clip.is_cuda  # there, fp32 may be TF32
        tolerance = TOLERANCE if is_exact else HALF_TOLERANCE
        if not difference.isfinite() or difference <= tolerance * largest:
            return False  # infinite in fp16, or of damaged weights: the caller reports them
        _log.warning(
            "for %d frames, the %s %s differs from the network as trained by %.1e of the largest "
            "output; clips of this length run through the network as trained, which is slower",
            *(clip.shape[self._time], self, type(self._model).__name__, difference / largest),
        )
        return True

    def _most(self) -> int:
        """How many networks are kept."""
        bytes_each = _size(self._model) * PRECISIONS[self.precision].itemsize
        return max(KEPT, KEPT_BYTES // max(bytes_each, 1))

    def _warn_of_repetition(self, count: int) -> None:
        if count in self._dropped and not self._warned:
            self._warned = True
            _log.warning(
                "more than %d sub-networks are in use, and each has its fused network; those that "
                "were not used for longest are built again. Use fewer numbers of frames at a time",
                self._most(),
            )

    def _build(self, frames: int, clip: Tensor) -> nn.Module:
        # Inference tensors, made under torch.inference_mode, could not be used outside of it.
        with torch.inference_mode(False), torch.no_grad():
            clip = clip.clone()
            network = self._model
            if self.fused:
                network = fuse(network, frames, example=clip[:1])
            elif self.compiled and isinstance(network, FrameFlexible):
                # torch.compile cannot switch to interpolated sub-networks.
                network = extract(network, self.select(frames)).eval()
            on_cpu = clip.device.type == "cpu"
            packed = self._packed(network, clip[:1]) if on_cpu else None
            if self.precision == "auto":
                self.precision = self._best_precision(network, packed, clip)
            if self.precision == "bf16" and not self._networks and on_cpu:
                _warn_of_slow_bf16()
            dtype = PRECISIONS[self.precision]
            if packed is not None and dtype is torch.float32:
                network = packed
            elif self.fused:
                network = network.to(dtype)
                if packed is not None and can_pack(dtype):
                    network = pack(network)
                elif not on_cpu:
                    network = self._packed(network, clip[:1].to(dtype)) or network
        network = Compiled(network) if self.compiled else network
        return CudaGraphs(network) if self.cuda_graphs else network

    def _packs(self, device: torch.device) -> bool:
        """Whether networks are packed (:func:`ffn.export.pack`), once the precision is known."""
        if not self.fused or self.compiled or not self._packable:
            return False
        on_cpu = device.type == "cpu"
        return can_pack(torch.float32 if on_cpu else PRECISIONS[self.precision], device.type)

    def _packed(self, network: nn.Module, clip: Tensor) -> nn.Module | None:
        """A packed copy; None, with a warning, if its outputs are not those of the network.

        On a CPU it is in fp32: without rounding to bf16, any difference is a fault.
        """
        if not self._packs(clip.device):
            return None
        tolerance = TOLERANCE if clip.dtype is torch.float32 else HALF_TOLERANCE
        packed = pack(copy.deepcopy(network))
        try:
            expected = network(clip)
            difference = (packed(clip) - expected).abs().max() / expected.abs().max()
            if difference <= tolerance:  # NaN is not
                return packed
            reason = f"it differs by {difference:.1e} of the largest output"
        except Exception as error:  # any, of a network of anyone
            reason = f"{type(error).__name__}: {error}"
        _log.warning(
            "%s cannot be packed (%s); it runs fused only, with the same answers, but slower",
            *(type(self._model).__name__, reason.splitlines()[0]),
        )
        self._packable = False
        return None

    def _best_precision(self, network: nn.Module, packed: nn.Module | None, clip: Tensor) -> str:
        if clip.device.type == "cuda":
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        if clip.device.type != "cpu" or not self.fused or not has_bf16():
            return "fp32"
        path = self._cache / "precision.json" if self._cache else None
        shape = "x".join(map(str, clip.shape))
        kind = f"{type(network).__name__} of {_size(network)} parameters"
        form = f"{shape}{', packed for the shape' * (packed is not None)}"
        key = f"{kind}, {form}, {_machine(clip.device)}"
        known = read_measurements(path, lambda value: str(value) in PRECISIONS) if path else {}
        if key not in known:
            known[key] = "bf16" if _is_faster_in_bf16(network, packed, clip) else "fp32"
            if path:
                write_measurements(path, known, "precision")
        return known[key]


def _warn_of_slow_bf16() -> None:
    if not has_bf16():
        _log.warning("%s; choose fp32, which is more exact too", SLOW_BF16)


def _is_faster_in_bf16(network: nn.Module, packed: nn.Module | None, clip: Tensor) -> bool:
    """Whether three forward passes each show that bf16 takes less than 0.9 of the time."""
    half, whole = copy.deepcopy(network).bfloat16(), network if packed is None else packed
    if packed is not None and can_pack():
        half = pack(half)
    seconds: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for number in range(4):  # alternately; the first pass warms up
        for name, run, x in (("fp32", whole, clip), ("bf16", half, clip.bfloat16())):
            start = time.perf_counter()
            run(x)
            if number:
                seconds[name].append(time.perf_counter() - start)
    return min(seconds["bf16"]) < 0.9 * min(seconds["fp32"])


def _machine(device: torch.device) -> str:
    """What a measured time depends on beside the network: the device and the software."""
    return f"{describe_device(device)}, torch {torch.__version__}, ffn {__version__}"


def _size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def read_measurements(path: Path, valid: Callable[[Any], bool]) -> dict[str, Any]:
    """The valid measurements of a file; none if it does not exist or is damaged."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    values = known.items() if isinstance(known, dict) else ()
    return {key: value for key, value in values if isinstance(value, (str, dict)) and valid(value)}


def write_measurements(path: Path, known: Mapping[str, Any], what: str) -> None:
    """Write measurements for later processes; a warning if that fails.

    Args:
        path: the file; replaced.
        known: all measurements.
        what: was measured, for the warning, e.g. "precision".
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known, indent=1) + "\n")
    except OSError as error:
        _log.warning(
            "cannot keep the measured %s in %s: %s. Every process measures it again; set "
            "the environment variable FFN_HOME to a folder that can be written",
            what,
            path,
            error.strerror or error,
        )
