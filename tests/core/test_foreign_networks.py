"""Networks with habits that ours do not have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ffn
from ffn.core import PrivateModules


class FrameTokens(nn.Module):
    """One token per frame, through torch's own transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, clip: Tensor) -> Tensor:
        tokens = self.embed(clip.mean((3, 4)).transpose(1, 2))  # (B, T, 16)
        return self.head(self.layer(tokens).mean(1))


def test_torch_transformer_layer_reads_its_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """In eval mode without gradients, its fast path reads eps, weight and bias of the norms."""
    fast, calls = torch._transformer_encoder_layer_fwd, []
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *a: (calls.append(1), fast(*a))[1]
    )
    torch.manual_seed(0)
    model = ffn.convert(FrameTokens(), (2, 4), alter="none").eval()
    for module in model.modules():
        if isinstance(module, PrivateModules):
            for parameter in module.parameters():
                nn.init.normal_(parameter, 1, 0.3)
    for frames in (2, 4):
        clip = torch.randn(2, 3, frames, 8, 8)
        with torch.no_grad():
            result = model(clip)
        assert calls
        calls.clear()
        torch.testing.assert_close(result, model(clip))  # with gradients: the slow path
        assert not calls
        assert not torch.allclose(result, model(clip, active=6 - frames))
