"""The format ``.onnx``: one file for ONNX Runtime and for the tools that read ONNX."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import torch
from torch import Tensor

from ffn.export.deployed import DeployedNetwork
from ffn.export.formats import ExportError, Run, register_format, require, trace
from ffn.export.shared_weights import separate_norms

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto


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
    try:
        with _quiet():
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
    if not network.fold_norms:
        separate_norms(model)
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


def _strip(model: ModelProto) -> None:
    """Remove the stack traces and module names that torch.onnx stores for every node."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for tensor in graph.initializer:
        tensor.ClearField("metadata_props")


def _simplify(model: ir.Model) -> None:
    """Fold constants, without the rules of ``optimize=True`` that fold norms into weights."""
    optimizer = require("onnxscript.optimizer")
    optimizer.inline(model)
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch.onnx logs about each step and about its own deprecated calls."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
