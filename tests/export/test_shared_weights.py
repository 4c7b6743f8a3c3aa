"""BatchNorms as scales and biases, against a convolution and a norm of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from ffn.export.onnx_format import open_session  # noqa: E402
from ffn.export.shared_weights import separate_norms  # noqa: E402


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_norm_becomes_a_scale_and_a_bias(bias: bool) -> None:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4, eps=0.1)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.weight.normal_()
    norm.bias.normal_()
    tensors = {"w": conv.weight, "gamma": norm.weight, "beta": norm.bias}
    tensors |= {"mean": norm.running_mean, "variance": norm.running_var}
    tensors |= {"b": conv.bias} if bias else {}
    make = onnx.helper
    nodes = [
        make.make_node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["y"]),
        make.make_node(
            "BatchNormalization", ["y", "gamma", "beta", "mean", "variance"], ["z"], epsilon=0.1
        ),
    ]
    ends = [
        make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 3, 8, 8]), ("z", [2, 4, 6, 6]))
    ]
    stored = [onnx.numpy_helper.from_array(t.detach().numpy(), n) for n, t in tensors.items()]
    graph = make.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=10)
    clip = torch.randn(2, 3, 8, 8)
    expected = norm.eval()(conv(clip))
    torch.testing.assert_close(open_session(model)(clip), expected, rtol=1e-4, atol=1e-5)

    separate_norms(model)

    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Mul", "Conv"]
    kept = {tensor.name for tensor in model.graph.initializer}
    assert kept == {"w", "y.scale", "y.bias"}
    torch.testing.assert_close(open_session(model)(clip), expected, rtol=1e-4, atol=1e-5)
