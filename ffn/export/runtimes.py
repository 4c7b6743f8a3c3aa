"""The programs that run a network: torch, ``torch.compile``, ONNX Runtime and OpenVINO.

A runtime gets a network, T, a clip of T frames and a precision. It returns a function that maps
clips (B, C, T, H, W) of any B to logits (B, K) in fp32. Several threads may call the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ffn.devices import NO_COMPILER, has_compiler
from ffn.export.deployed import DeployedNetwork
from ffn.export.formats import Run, open_session, require, to_onnx
from ffn.export.fuse import fuse, plain_copy
from ffn.export.kernels import channels_last

if TYPE_CHECKING:
    from onnx import ModelProto

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CORNER = 64  # pixels
_SETTING = Lock()
Build = Callable[[nn.Module, int, Tensor, str], Run]


def run_torch(model: nn.Module, frames: int, clip: Tensor, precision: str) -> Run:
    """torch's operators: on a CPU of the fused network, on CUDA in the channels-last layout."""
    if clip.device.type == "cpu":
        network = _fused(model, frames, clip).to(PRECISIONS[precision])
    else:  # cuDNN adds a folded norm's bias in a pass of its own, so that folding gains nothing
        plain, _ = plain_copy(model, frames)
        network = _convert(plain.eval(), PRECISIONS[precision])
    return _in_precision(network, precision)


def run_unfused(model: nn.Module, frames: int, clip: Tensor, precision: str) -> Run:
    """The network as trained, under autocast for a precision other than fp32."""
    dtype = PRECISIONS[precision]

    def run(x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(x.device.type, dtype, enabled=precision != "fp32"):
            return model(x).float()

    return run


def run_compiled(model: nn.Module, frames: int, clip: Tensor, precision: str) -> Run:
    """``torch.compile``; on CUDA in CUDA graphs, whose memory belongs to one thread."""
    on_cpu = clip.device.type == "cpu"
    network = _fused(model, frames, clip).to(PRECISIONS[precision])
    if not on_cpu:
        network = channels_last(network)

    def forward(x: Tensor) -> Tensor:
        return network(x)

    forward.__code__ = forward.__code__.replace()  # torch keeps eight graphs for a code object
    mode = None if on_cpu else "reduce-overhead"
    run = _in_precision(torch.compile(forward, dynamic=False, mode=mode), precision)
    if on_cpu:
        return functools.partial(_with_constants, run, set())
    return functools.partial(_in_graph_thread, run)


def _with_constants(run: Run, shapes: set[torch.Size], clip: Tensor) -> Tensor:
    """Compile with weights as constants of the graph, so that oneDNN packs them once.

    The setting belongs to the process. As an option of one ``torch.compile``, it has no effect
    (torch 2.15): the graph is traced without it. ``shapes`` are those of the compiled graphs.
    """
    if clip.shape in shapes:
        return run(clip)
    from torch._inductor import config  # takes a second

    with _SETTING, config.patch(freezing=True):
        logits = run(clip)
    shapes.add(clip.shape)
    return logits


def run_onnxruntime(model: nn.Module, frames: int, clip: Tensor, precision: str) -> Run:
    """ONNX Runtime on the CPU, with the file that ``ffn.export`` writes."""
    return open_session(_as_onnx(model, frames, clip))


def run_openvino(model: nn.Module, frames: int, clip: Tensor, precision: str) -> Run:
    """OpenVINO on the CPU, with the file that ``ffn.export`` writes."""
    core = _openvino_core()
    options = {
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    file = core.read_model(_as_onnx(model, frames, clip).SerializeToString())
    request, lock = core.compile_model(file, "CPU", options).create_infer_request(), Lock()

    def run(x: Tensor) -> Tensor:
        with lock:
            return torch.from_numpy(request.infer([x.numpy()])[0])

    return run


@functools.cache
def _openvino_core() -> Any:
    """One for the process, which is never destroyed.

    A CPU plugin replaces the stack of signal handlers. When two are destroyed in the order of their
    creation, the stack that remains is freed memory, and the next signal ends the process.
    """
    return require("openvino").Core()


RUNTIMES: dict[str, Build] = {
    "torch": run_torch,
    "compile": run_compiled,
    "onnxruntime": run_onnxruntime,
    "openvino": run_openvino,
    "unfused": run_unfused,
}
FILES = ("onnxruntime", "openvino")  # for one T, height and width; on a CPU


def check_runtime(runtime: str, device: str) -> None:
    """Check that a runtime runs on a type of device here.

    Raises:
        ValueError: it runs on another type of device.
        ImportError: it needs a package or a compiler that is not installed.
    """
    if runtime == "compile" and device == "cpu" and not has_compiler():
        raise ImportError(f"{NO_COMPILER}. Install one, or choose another runtime")
    if runtime in FILES:
        if device != "cpu":
            raise ValueError(f"{runtime} runs on the CPU; the network is on {device}")
        for name in ("onnx", "onnxscript", runtime):
            require(name)


def available(device: str) -> list[str]:
    """The runtimes of fused networks that run on a type of device here."""
    found = []
    for runtime in RUNTIMES:
        with suppress(ValueError, ImportError):
            check_runtime(runtime, device)
            found.append(runtime)
    return [runtime for runtime in found if runtime != "unfused"]


def _fused(model: nn.Module, frames: int, clip: Tensor, *, kernels: bool = True) -> nn.Module:
    """The fused network, proved on a corner of the clip: a pass of a whole clip takes longer."""
    try:
        return fuse(model, frames, example=clip[:1, ..., :CORNER, :CORNER], kernels=kernels)
    except ValueError:  # of a network for one size
        return fuse(model, frames, example=clip[:1], kernels=kernels)


def _as_onnx(model: nn.Module, frames: int, clip: Tensor) -> ModelProto:
    plain = _fused(model, frames, clip, kernels=False)
    deployed = DeployedNetwork(plain, shape=tuple(clip.shape[1:])).eval()
    return to_onnx(deployed, torch.cat([clip[:1]] * 2))  # torch.export fixes a batch size of 1


def _in_precision(network: Callable[[Tensor], Tensor], precision: str) -> Run:
    dtype = PRECISIONS[precision]

    def run(clip: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():  # one graph for all callers
            clip = clip.clone() if clip.is_inference() else clip
            return network(clip.to(dtype)).float()

    return run


def _convert(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert a network in place to another precision, but for its batch norms."""
    for module in network.modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            module._apply(lambda t: t.to(dtype) if t.is_floating_point() else t, recurse=False)
    return channels_last(network)


@functools.cache
def _graph_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="cuda graphs")


def _in_graph_thread(run: Run, clip: Tensor) -> Tensor:
    """Run in the thread that owns the CUDA graphs, on the stream of the caller."""
    stream = torch.cuda.current_stream(clip.device)

    def on_stream() -> Tensor:
        with torch.cuda.stream(stream):
            return run(clip).clone()  # the next run of the graph overwrites its output

    return _graph_thread().submit(on_stream).result()
