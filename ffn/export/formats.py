"""Registry of export formats by file suffix: ``.pt2``, ``.aoti.pt2`` and ``.onnx``.

Your own package adds a format with the same decorator::

    from ffn.export import register_format

    @register_format("ts")
    def torchscript(network, clip, file): ...

The function writes ``network``, traced with ``clip``, to an open binary file. It returns a function
that runs the written file: clip in, logits out. ``ffn.export`` compares its logits with those of
the network. ``clip`` is an example input, (B, C, T, H, W), or uint8 frames (B, T, H, W, 3) if the
network contains the preprocessing. ``network`` is a ``DeployedNetwork``: its ``dynamic_shapes`` are
the dimensions that may vary (always B), its ``metadata`` what the file should state about itself.
"""

from __future__ import annotations

import importlib
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor

from ffn.devices import NO_COMPILER, has_compiler
from ffn.export.deployed import DeployedNetwork
from ffn.registry import Registry

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto

Run = Callable[..., Any]  # clip in, logits out; of a step, tuples
Format = Callable[[DeployedNetwork, Tensor, IO[bytes]], Run]

NAMES = {"torch": "pt2", "aotinductor": "aoti.pt2"}  # of formats, besides their suffixes
AXES = {"B": "batch", "T": "frames", "H": "height", "W": "width"}  # names in ONNX files
LEAST_FRAMES = (1, 2, 3, 5, 9)  # tried as the smallest T: of SlowFast, alpha + 1
METADATA_FILE = "metadata.json"  # inside a .pt2

_formats: Registry[Format] = Registry("export format")


class ExportError(RuntimeError):
    """A network that a format cannot express, or a file that does not compute its logits."""


def register_format(suffix: str) -> Callable[[Format], Format]:
    """Register an export format under a file suffix without its dot, e.g. "pt2"; a decorator.

    Raises:
        ValueError: another function is registered under the suffix.
    """
    return _formats.register(suffix)


def find_format(path: Path) -> Format:
    """The format of a file: the one with the longest matching suffix.

    Raises:
        ValueError: no format has the suffix of the file.
    """
    endings = [path.name.split(".", n)[n] for n in range(1, path.name.count(".") + 1)]
    suffix = next((e for e in endings if e in _formats), path.suffix.removeprefix("."))
    try:
        return _formats[suffix]
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]}") from None


def suffix_of(name: str) -> str:
    """The suffix of a format's files, by its name or suffix, with the dot."""
    return f".{NAMES.get(name, name)}"


def trace(network: DeployedNetwork, clip: Tensor) -> torch.export.ExportedProgram:
    """Trace a network with ``torch.export``.

    If T may vary, ``network.least_frames`` becomes the smallest T that the program accepts: some
    layers run other operations for very short clips.

    Raises:
        ExportError: torch.export cannot trace it, as with a T that may vary.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*_flat_weights")  # of torch's GRU
            program = torch.export.export(
                network, _as_tuple(clip), dynamic_shapes=network.dynamic_shapes, strict=False
            )
    except Exception as error:  # of many kinds
        remedy = "; export it for one T" if network.any_frames else ""
        vary = " and ".join(d for d in network.input_shape if isinstance(d, str))
        raise ExportError(
            f"torch.export cannot trace this network if {vary} may vary{remedy}. It reports: "
            f"{error}"
        ) from error
    if network.any_frames:
        network.least_frames = _least_frames(program, network)
        network.metadata["least_frames"] = network.least_frames
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # with paths of this machine
    return program


def _as_tuple(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def _least_frames(program: torch.export.ExportedProgram, network: DeployedNetwork) -> int:
    run = program.module()
    for frames in LEAST_FRAMES[:-1]:
        with suppress(AssertionError, RuntimeError):  # a guard of the program
            run(network.example(1, frames=frames))
            return frames
    return LEAST_FRAMES[-1]


def require(name: str) -> ModuleType:
    """Import a package of the extra ``onnx`` or ``openvino``.

    Raises:
        ImportError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        extra = "openvino" if name == "openvino" else "onnx"
        raise ImportError(
            f'{error.name} is not installed; the extra "{extra}" installs it: '
            f'pip install "frame-flexible[{extra}]"'
        ) from None


@register_format("pt2")
def pt2(network: DeployedNetwork, clip: Tensor, file: IO[bytes]) -> Run:
    """An ``ExportedProgram``; read it with ``torch.export.load(path).module()``."""
    program = trace(network, clip)  # completes the metadata
    # torch.export.save stores the example clips, which a program does not use: one zero, expanded
    # to their shape, takes the place of 10 MB.
    examples = (x.new_zeros(()).expand(x.shape) for x in _as_tuple(clip))
    program.example_inputs = (*examples,), {}
    metadata = json.dumps(network.metadata)
    with warnings.catch_warnings():  # of weights in the channels-last layout; the file is compared
        warnings.filterwarnings("ignore", message="No complete tensor found")
        torch.export.save(program, file, extra_files={METADATA_FILE: metadata})
    file.seek(0)
    return torch.export.load(file).module()


@register_format("aoti.pt2")
def aotinductor(network: DeployedNetwork, clip: Tensor, file: IO[bytes]) -> Run:
    """A package for ``torch._inductor.aoti_load_package``; its metadata values are JSON."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    if not has_compiler():  # found before the minutes that a trace may take
        raise ExportError(f"{NO_COMPILER}, which AOTInductor needs too; install one")
    program = trace(network, clip)
    metadata = {key: json.dumps(value) for key, value in network.metadata.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "network.pt2")
        aoti_compile_and_package(
            program, package_path=path, inductor_configs={"aot_inductor.metadata": metadata}
        )
        file.write(Path(path).read_bytes())
        return aoti_load_package(path)


@register_format("onnx")
def onnx(network: DeployedNetwork, clip: Tensor, file: IO[bytes]) -> Run:
    """An ONNX model, with its metadata in ``metadata_props``, each value as JSON."""
    model = to_onnx(network, clip)
    file.write(model.SerializeToString())
    return open_session(model)


def to_onnx(network: DeployedNetwork, clip: Tensor) -> ModelProto:
    """Convert a network to ONNX.

    Raises:
        ImportError: the extra ``onnx`` is not installed.
        ExportError: an operation has no ONNX equivalent.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        require(name)
    if network.dtype != torch.float32:
        raise ExportError(
            f"the network is in {network.dtype}; ONNX files are exported in fp32. Export the "
            "network before its conversion, or to .pt2"
        )
    program = _without_adaptive_pools(trace(network, clip))
    for name in ("torch.onnx", "onnxscript"):  # they log each step
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own deprecated calls
            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                optimize=network.fold_norms,
                input_names=network.input_names,
                output_names=network.output_names,
            )
            if not network.fold_norms:
                _simplify(exported.model)
    except torch.onnx.errors.OnnxExporterError as error:
        cause: BaseException = error  # the first one names the operator
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ExportError(
            f"torch.onnx cannot express this network ({str(cause).partition(chr(10))[0]}). Replace "
            "the layer with this operator, or export to .pt2"
        ) from error
    model = exported.model_proto
    _strip(model)
    _name_sizes(model, network.input_shape)
    for key, value in network.metadata.items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    return model


def _without_adaptive_pools(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace adaptive average pools, which torch.onnx lacks, by averages over slices."""
    aten = torch.ops.aten
    pools = [getattr(aten, f"{p}adaptive_avg_pool{n}d").default for n in (2, 3) for p in ("_", "")]
    if any(node.target in pools for node in program.graph.nodes):
        return program.run_decompositions(dict.fromkeys(pools, _adaptive_average))
    return program


def _adaptive_average(x: Tensor, output_size: Sequence[int]) -> Tensor:
    for dim, size in enumerate(output_size, x.ndim - len(output_size)):
        length = x.shape[dim]
        if size == 1:
            x = x.mean(dim, keepdim=True)
        elif size != length:
            ends = [
                (i * length // size, ((i + 1) * length + size - 1) // size) for i in range(size)
            ]
            x = torch.cat([x.narrow(dim, a, b - a).mean(dim, keepdim=True) for a, b in ends], dim)
    return x


def open_session(model: ModelProto) -> Run:
    """A function that runs a model with ONNX Runtime on the CPU."""
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [given.name for given in session.get_inputs()]

    def run(*given: Tensor) -> Tensor | tuple[Tensor, ...]:
        values = {name: x.numpy() for name, x in zip(names, given, strict=True)}
        found = [torch.from_numpy(x) for x in session.run(None, values)]
        return found[0] if len(found) == 1 else tuple(found)

    return run


def _strip(model: ModelProto) -> None:
    """Remove stack traces, names of modules, zeros and unused tensors that torch.onnx stores."""
    graph, to_array = model.graph, require("onnx").numpy_helper.to_array
    values = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        bias = values.get(node.input[2]) if node.op_type == "Conv" and len(node.input) > 2 else None
        if bias is not None and not to_array(bias).any():
            del node.input[2]  # it has a wrong shape for 3-D convolutions
    used = {name for node in graph.node for name in node.input}
    for name in values.keys() - used:
        graph.initializer.remove(values[name])
    parts = (graph, *graph.node, *graph.input, *graph.output, *graph.value_info)
    for part in (model, *parts, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _name_sizes(model: ModelProto, shape: list[int | str]) -> None:
    """Name the dimensions that vary, as the metadata does; torch.onnx of torch 2.6 does not."""
    given, found = (
        end[0].type.tensor_type.shape.dim for end in (model.graph.input, model.graph.output)
    )
    names = {size.dim_param: AXES.get(name) for size, name in zip(given, shape, strict=True)}
    for size in (*given, *found):
        if size.dim_param:
            size.dim_param = names.get(size.dim_param, size.dim_param)
    model.graph.ClearField("value_info")


def _simplify(model: ir.Model) -> None:
    """Fold constants, without the rules of ``optimize=True`` that fold norms into weights."""
    optimizer = require("onnxscript.optimizer")
    optimizer.inline(model)
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
