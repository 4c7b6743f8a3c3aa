"""Averaging over frames, and the site that marks where alterations go."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ffn.engine.tasks import PlainTask
from ffn.layers import AlterationSite, PerFrame


def test_logits_are_the_mean_over_frames() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    clip = torch.randn(2, 3, 5, 6, 7)

    logits = PerFrame(net)(clip)

    for b in range(2):
        frames = [net(clip[b, :, t][None])[0] for t in range(5)]
        torch.testing.assert_close(logits[b], sum(frames) / 5)


def test_refuses_what_is_no_clip() -> None:
    for shape in ((3, 4, 8, 8), (2, 3, 3, 4, 8, 8), (2, 3, 0, 8, 8)):
        with pytest.raises(ValueError, match=r"expected \(B, C, T, H, W\)"):
            PerFrame(nn.Identity())(torch.zeros(shape))


def test_site_is_identity_without_entries() -> None:
    site, x = AlterationSite(4), torch.randn(2, 4, 3, 3)

    assert site(x) is x
    assert not site.state_dict()
    assert site.is_alteration_site
    assert (site.channels, site.channel_dim) == (4, 1)


def test_auxiliary_outputs() -> None:
    class Heads(nn.Module):
        def __init__(self, kind: Callable[..., Any]) -> None:
            super().__init__()
            self.kind = kind

        def forward(self, images: Tensor) -> Any:
            return self.kind(images.mean((2, 3)), images.amax((2, 3)))

    clip = torch.randn(2, 3, 4, 5, 5)
    pair = namedtuple("pair", ["logits", "other"])
    logits, other = PerFrame(Heads(pair))(clip)
    torch.testing.assert_close(logits, clip.mean((2, 3, 4)))
    torch.testing.assert_close(other, clip.amax((3, 4)).mean(2))
    for wrong, name in ((lambda *x: SimpleNamespace(x=x), "SimpleNamespace"), (pair, "pair")):
        with pytest.raises(ValueError, match=f"returns {name}"):
            PlainTask(PerFrame(Heads(wrong)), 4).logits(clip)
