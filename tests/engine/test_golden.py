"""Ten training steps of each family, compared with stored losses.

Weights and clips come from numpy's RandomState, whose streams never change, through no video codec.
``python tests/engine/test_golden.py`` rewrites the file after an intended change of results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ffn import backbones
from ffn.core import convert
from ffn.engine.optim import learning_rate, set_learning_rate, tsm_groups
from ffn.engine.tasks import FlexibleTask

STORED = Path(__file__).parent / "golden_losses.json"
COUNTS = (4, 8, 16)
FAMILIES = {"tsm": 16, "tea": 16, "slowfast": 16, "uniformer": 32}  # side of a frame in pixels


def ten_steps(family: str) -> list[dict[str, float]]:
    """In float64: in float32, ten steps make the rounding of another CPU visible."""
    draw, side = np.random.RandomState(0), FAMILIES[family]

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draw.standard_normal(shape))

    model = convert(backbones.build(f"{family}_tiny", num_classes=3, width=8), COUNTS).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".site." in name:
                parameter.copy_(0.1 * normal(*parameter.shape))
            elif parameter.ndim == 1:
                parameter.copy_((0.1 * normal(*parameter.shape)) + name.endswith("weight"))
            else:
                parameter.copy_(normal(*parameter.shape) * (2 / parameter[0].numel()) ** 0.5)
    task = FlexibleTask(model, COUNTS).train()
    optimizer = torch.optim.SGD(tsm_groups(model, 0.05), lr=1.0, momentum=0.9)

    steps = []
    for step in range(10):
        clips = {count: normal(4, 3, count, side, side) for count in COUNTS}
        rates = {"lr": 0.01, "epochs": 2, "milestones": [1], "gamma": 0.1, "warmup_epochs": 0.5}
        lr = learning_rate(step / 5, schedule="step", final_lr=0.0, **rates)
        set_learning_rate(optimizer, lr)
        outputs = task({"clips": clips, "label": torch.tensor([0, 1, 2, step % 3])})
        optimizer.zero_grad()
        outputs["loss"].backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
        losses = {key: value.item() for key, value in outputs.items() if key.startswith("loss")}
        steps.append({**losses, "grad_norm": norm.item()})
    return steps


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "tsm")) for name in FAMILIES],
)
def test_ten_steps_give_the_stored_losses(family: str) -> None:
    stored = json.loads(STORED.read_text())[family]

    found = ten_steps(family)

    assert len(found) == len(stored) == 10
    for step, expected in zip(found, stored, strict=True):
        assert step == pytest.approx(expected, rel=1e-4)


if __name__ == "__main__":
    found = {family: ten_steps(family) for family in FAMILIES}
    STORED.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(f"wrote {STORED}")
