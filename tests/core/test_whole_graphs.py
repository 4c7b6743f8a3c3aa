"""``torch.compile`` of a whole frame-flexible network, and ``torch.export`` for clips of any T."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from compiler_toys import Small
from torch import nn

from ffn.core import FrameFlexible, convert, extract, nearest

pytestmark = pytest.mark.usefixtures("fresh_compiler")
LENGTHS = (4, 6, 7, 12, 20, 2, 1)


def flexible(net: nn.Module) -> FrameFlexible:
    """Sub-networks that differ, so that a graph with the wrong one is noticed."""
    model = convert(net, (4, 8, 16), alter="all" if not isinstance(net, Small) else ["head"])
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.0)
    return model


def graphs_of(model: FrameFlexible, size: int, lengths: tuple[int, ...] = LENGTHS) -> int:
    """Compare a compiled network with the eager one at many lengths; return its graphs."""
    eager, compiled = copy.deepcopy(model), torch.compile(model, backend="eager", fullgraph=True)
    for frames in lengths:
        clip = torch.randn(2, 3, frames, size, size)
        torch.testing.assert_close(compiled(clip), eager(clip), rtol=1e-6, atol=1e-6)
        assert model.active == nearest(frames, (4, 8, 16))
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("training", [False, True])
def test_a_graph_per_sub_network(training: bool) -> None:
    """One more for the first length, which torch assumes to be the only one, and for T = 1."""
    torch.manual_seed(0)
    assert graphs_of(flexible(Small()).train(training), 4) == 5
    if not training:  # a network that interpolates compiles at its trained counts
        model = flexible(Small()).eval()
        model.interpolate = True
        graphs_of(model, 4, (8, 4, 16, 2, 20))


def test_the_active_count_of_a_graph_belongs_to_the_thread() -> None:
    model = flexible(Small()).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    clips = {frames: torch.randn(1, 3, frames, 4, 4) for frames in (4, 16)}
    expected = {frames: model(clip) for frames, clip in clips.items()}
    seen: list[int] = []

    def run() -> None:
        torch.testing.assert_close(compiled(clips[4]), expected[4])
        seen.append(model.active)

    compiled(clips[16])
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert seen == [4]
    assert model.active == 16


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_of_one_sub_network(strict: bool) -> None:
    """That of T in the example. For clips of other T, the extracted one accepts them."""
    model = flexible(Small()).eval()
    clip, dims = torch.randn(2, 3, 8, 4, 4), ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (clip,), dynamic_shapes=dims, strict=strict).module()
    torch.testing.assert_close(program(clip[:1]), model(clip[:1]))

    if strict and not hasattr(torch.compiler, "is_exporting"):
        return  # torch 2.6 does not tell: it specialises for the range, or its error stands
    dims, small = ({2: torch.export.Dim("t", min=6, max=11)},), extract(model, 8)
    with pytest.raises(RuntimeError, match=r"use ffn\.export, or torch\.export of ffn\.extract"):
        torch.export.export(model, (clip,), dynamic_shapes=dims, strict=strict)
    program = torch.export.export(small, (clip,), dynamic_shapes=dims, strict=strict).module()
    torch.testing.assert_close(program(clip[:, :, :7]), small(clip[:, :, :7]))
