"""SlowFast: the frames of the slow pathway, feature lengths, and initialization."""

from __future__ import annotations

import itertools

import pytest
import torch

from ffn import backbones
from ffn.backbones.slowfast import Fusion, SlowFast, slow_frames


def test_slow_frames_spread_over_the_clip() -> None:
    for frames, alpha in itertools.product(range(1, 65), (1, 2, 4, 8)):
        index = slow_frames(frames, alpha).tolist()
        assert len(index) == -(-frames // alpha)
        assert index[0] == 0
        assert len(index) == 1 or index[-1] == frames - 1
        steps = [b - a for a, b in itertools.pairwise(index)]
        assert all(step >= 1 for step in steps)
        assert not steps or max(steps) - min(steps) <= 1


def test_slow_frames_of_pyslowfast() -> None:
    """Written by its ``torch.linspace(0, T - 1, T // 4).long()``."""
    assert slow_frames(16, 4).tolist() == [0, 5, 10, 15]
    assert slow_frames(32, 4).tolist() == [0, 4, 8, 13, 17, 22, 26, 31]
    assert slow_frames(64, 4)[:6].tolist() == [0, 4, 8, 12, 16, 21]
    assert slow_frames(160, 4)[13] == 53  # 13 * 159 / 39 exactly; float32 gives 52 there


def test_lateral_connections_end_where_the_slow_pathway_does() -> None:
    for kernel, alpha in itertools.product((1, 5, 7), (1, 4, 8)):
        fusion = Fusion(2, 4, kernel=kernel, alpha=alpha).eval()
        for frames in (*range(1, 10), 63, 64):
            out = fusion(torch.zeros(1, 2, frames, 1, 1))
            assert out.shape[2] == len(slow_frames(frames, alpha))


def test_only_slow_frames_reach_the_slow_pathway() -> None:
    model = backbones.build("slowfast_tiny", num_classes=3).eval()
    clip = torch.randn(1, 3, 7, 32, 32)
    seen: list[torch.Tensor] = []
    model.slow.stem.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(clip)
    assert torch.equal(seen[0], clip[:, :, [0, 2, 4, 6]])


def test_r101_sees_time_in_the_first_six_blocks_of_a_stage() -> None:
    with torch.device("meta"):
        model = backbones.build("slowfast_r101")
    for pathway, spans in ((model.slow, (1, 1, 3, 3)), (model.fast, (3, 3, 3, 3))):
        for stage, span in zip(pathway.stages, spans, strict=True):
            found = [block.conv1.kernel_size[0] for block in stage]
            assert found == [span if index < 6 else 1 for index in range(len(stage))]


@torch.no_grad()
def test_blocks_start_as_identities_unless_tiny() -> None:
    tiny = backbones.build("slowfast_tiny", num_classes=3)
    for model, is_zero in ((SlowFast(3, (1, 1, 1, 1), width=8), True), (tiny, False)):
        norms = [m.bn3 for m in model.modules() if hasattr(m, "bn3")]
        assert len(norms) == 8
        assert all((norm.weight.abs().sum() == 0) == is_zero for norm in norms)


def test_sizes_that_do_not_fit() -> None:
    for options in ({"fusion_kernel": 4}, {"width": 12}):
        with pytest.raises(ValueError, match="expected an odd kernel"):
            SlowFast(3, (1, 1, 1, 1), **options)
