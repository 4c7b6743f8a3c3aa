"""ONNX files of several sub-networks that store their common weights once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffn.export.formats import require

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

SMALLEST = 1024  # bytes; smaller tensors stay in each file
ALIGNMENT = 64  # bytes


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


def separate_norms(model: ModelProto) -> None:
    """Replace BatchNorms behind convolutions by a scale of the weights and a bias, in place.

    ``norm(conv(x, W))`` becomes ``conv(x, W * scale, bias)``. The sub-networks share W; runtimes
    compute the product of the constants when they load a file.
    """
    graph = model.graph
    to_array = require("onnx").numpy_helper.to_array
    values = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    for conv in (node for node in graph.node if node.op_type == "Conv" and len(node.input) > 2):
        if conv.input[2] in values and not values[conv.input[2]].any():
            del conv.input[2]  # zeros that torch.onnx adds, of a wrong shape for 3-D convolutions
    made = {output: node for node in graph.node for output in node.output}
    readers = [name for node in graph.node for name in node.input]
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        conv = made.get(norm.input[0])
        if conv is None or conv.op_type != "Conv" or readers.count(norm.input[0]) != 1:
            continue
        if all(name in values for name in (*norm.input[1:], *conv.input[1:])):
            _separate(graph, conv, norm, values)
    used = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)


def _separate(
    graph: GraphProto, conv: NodeProto, norm: NodeProto, values: dict[str, np.ndarray]
) -> None:
    onnx = require("onnx")
    gamma, beta, mean, variance = (values[name] for name in norm.input[1:])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
    scale = gamma / np.sqrt(variance + np.float32(epsilon))
    bias = beta - mean * scale
    if len(conv.input) > 2:
        bias = bias + values[conv.input[2]] * scale

    weight, name = conv.input[1], conv.output[0]
    scale = scale.reshape(-1, *[1] * (values[weight].ndim - 1))
    for suffix, value in (("scale", scale), ("bias", bias)):
        graph.initializer.append(onnx.numpy_helper.from_array(value, f"{name}.{suffix}"))
    product = onnx.helper.make_node("Mul", [weight, f"{name}.scale"], [f"{name}.weight"])
    product.name = f"{name}.weight"
    graph.node.insert(list(graph.node).index(conv), product)
    del conv.input[1:]
    conv.input.extend([product.output[0], f"{name}.bias"])
    conv.output[0] = norm.output[0]
    graph.node.remove(norm)
