"""The format ``.onnx``: one file for ONNX Runtime and for the tools that read ONNX."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch
from torch import Tensor

from ffn.export.deployed import DeployedNetwork
from ffn.export.formats import ExportError, Run, register_format, require, trace

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto

SMALLEST = 1024  # bytes; smaller tensors are not shared
ALIGNMENT = 64  # bytes


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
    program = trace(network, clip)
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
                input_names=[network.input_name],
                output_names=[network.output_name],
            )
            if not network.fold_norms:
                _simplify(exported.model)
    except torch.onnx.errors.OnnxExporterError as error:
        raise ExportError(f"torch.onnx.export failed: {error}") from error
    model = exported.model_proto
    _strip(model)
    _name_sizes(model, network.input_shape)
    for key, value in network.metadata.items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    return model


def open_session(model: ModelProto) -> Run:
    """A function that runs a model with ONNX Runtime on the CPU."""
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name

    def run(clip: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: clip.numpy()})[0])

    return run


def share_tensors(paths: Iterable[Path], shared: Path) -> None:
    """Move the tensors of ONNX files to one file next to them; equal tensors are stored once."""
    onnx = require("onnx")
    places: dict[bytes, int] = {}  # by hash
    with shared.open("wb") as file:
        for path in paths:
            model = onnx.load(path)
            for tensor in model.graph.initializer:
                values = onnx.numpy_helper.to_array(tensor).tobytes()
                if len(values) < SMALLEST:
                    continue
                digest = hashlib.sha256(values).digest()
                if digest not in places:
                    file.write(b"\0" * (-file.tell() % ALIGNMENT))
                    places[digest] = file.tell()
                    file.write(values)
                tensor.raw_data = values
                onnx.external_data_helper.set_external_data(
                    tensor, shared.name, offset=places[digest], length=len(values)
                )
                tensor.ClearField("raw_data")
            path.write_bytes(model.SerializeToString())


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
    """Name the dimensions that vary as the metadata does."""
    given, found = (
        end[0].type.tensor_type.shape.dim for end in (model.graph.input, model.graph.output)
    )
    names = {size.dim_param: name for size, name in zip(given, shape, strict=True)}
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
