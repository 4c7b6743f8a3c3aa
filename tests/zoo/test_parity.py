"""Every backbone against stored outputs of FFN-pytorch: logits at all frame counts, training steps.

Weights are made under the reference's names (tests/parity.py), renamed by `ffn.zoo.remap`, loaded
strictly. The *_parity.json files describe the origin of the expected numbers.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.core import FrameFlexible, convert
from ffn.zoo import create_model
from ffn.zoo.remap import from_foreign

FAMILIES = ("tsm", "tea", "slowfast", "uniformer")
EXPECTED: dict[str, dict[str, Any]] = {
    family: json.loads((Path(__file__).parent / f"{family}_parity.json").read_text())
    for family in FAMILIES
}
OURS = {
    "tsm_ffn_resnet18": "tsm_r18",
    "tsm_ffn_resnet50": "tsm_r50",
    "tsm_resnet50": "tsm_r50",
    "tea_ffn_resnet50": "tea_r50",
    "tea_resnet50": "tea_r50",
    "slowfast_ffn_r50": "slowfast_r50",
    "slowfast_r50": "slowfast_r50",
    "uniformer_ffn_s": "uniformer_s",
    "uniformer_s": "uniformer_s",
}
TRAINED = {"slowfast": (16, 32, 64)}
FAST = {  # (crop, most frames); the others take seconds each
    "tsm_ffn_resnet18": (112, 64),
    "tea_ffn_resnet50": (224, 2),
    "slowfast_ffn_r50": (112, 16),
    "uniformer_ffn_s": (112, 16),
}


@functools.lru_cache(maxsize=1)
def load_reference(reference: str) -> nn.Module:
    """Our network with the weights that the reference had, through its own names."""
    family, flexible = reference.split("_")[0], "_ffn_" in reference
    trained = TRAINED.get(family, (4, 8, 16))
    network = create_model(OURS[reference], num_classes=174, dropout=0.0)
    if flexible:
        network = convert(network, (4, 8, 16))  # the names of its branches, at any counts
    state = parity.reference(family, network.state_dict())
    assert parity.fingerprint(state) == EXPECTED[family]["logits"][reference]["entries"]
    converted = from_foreign(
        state, model=OURS[reference], trained_frames=trained if flexible else None
    )
    assert not converted.match.faults
    return converted.model


def cases() -> list:
    """All stored cases; the ones that take seconds are slow."""
    params = []
    for family in FAMILIES:
        for reference, stored in EXPECTED[family]["logits"].items():
            crop, most = FAST.get(reference, (0, 0))
            for case in stored["cases"]:
                fast = case["crop"] == crop and case["frames"] <= most
                params.append(
                    pytest.param(
                        reference,
                        case,
                        id=f"{reference}-{case['frames']}x{case['crop']}",
                        marks=() if fast else pytest.mark.slow,
                    )
                )
    return params


@pytest.mark.parametrize(("reference", "case"), cases())
def test_logits_are_the_references(reference, case):
    model = load_reference(reference).eval()
    shape = (case["batch"], 3, case["frames"], case["crop"], case["crop"])

    with torch.inference_mode():
        logits = model(parity.clip(case["input_seed"], shape))

    assert getattr(model, "active", None) == case["subnet"]
    assert parity.relative_error(logits, torch.tensor(case["logits"])) < 1e-5


@pytest.mark.slow
def test_windows_of_pyslowfasts_head_are_the_references():
    """On a map larger than in training, PySlowFast classifies every window of training's size. We
    classify the mean of the whole map; its windows are those of the reference."""
    case = EXPECTED["slowfast"]["windows"]["slowfast_r50"]
    model = load_reference.__wrapped__("slowfast_r50").eval()
    maps = []
    for pathway in (model.slow, model.fast):
        pathway.stages[-1].register_forward_hook(lambda _, __, x: maps.append(x))
    shape = (case["batch"], 3, case["frames"], case["crop"], case["crop"])

    with torch.inference_mode():
        logits = model(parity.clip(case["input_seed"], shape))
        windows = [
            F.avg_pool2d(x.mean(2), case["window"], stride=1).flatten(2).mT[0] for x in maps
        ]  # (windows, C) of each pathway
        found = model.head(torch.cat(windows, 1))

    assert parity.relative_error(found, torch.tensor(case["logits"])) < 1e-5
    spread = (found.max(0).values - found.min(0).values).max()
    assert (logits - found).abs().max() < spread  # the whole map is like any of its windows


def training_step(reference: str) -> tuple[FrameFlexible, dict[str, Tensor], dict[int, Tensor]]:
    """Forward and backward of the paper's loss, written out, in float64."""
    model = load_reference.__wrapped__(reference).double().train()
    if reference.startswith("tsm"):
        model.model.net.drop_rate = 0.0
    clips = {
        frames: parity.clip(200 + i, (4, 3, frames, 64, 64)).double()
        for i, frames in enumerate((4, 8, 16))
    }
    logits = {frames: model(clip) for frames, clip in clips.items()}

    teacher = logits[16].detach().softmax(1)
    small, middle = (
        (teacher * (teacher.log() - logits[frames].log_softmax(1))).sum() / 4 for frames in (4, 8)
    )
    label = F.cross_entropy(logits[16], torch.tensor([3, 41, 97, 160]))
    total = label + small + middle
    total.backward()
    return model, {"ce_H": label, "kl_L": small, "kl_M": middle, "total": total}, logits


@pytest.mark.parametrize(
    ("reference", "variant"),
    [
        pytest.param("tsm_ffn_resnet18", "per_clip", marks=pytest.mark.slow),
        pytest.param("tsm_ffn_resnet18", "upstream", marks=pytest.mark.slow),
        pytest.param("uniformer_ffn_s", "per_clip", marks=pytest.mark.slow),
    ],
)
def test_training_step_is_the_references(reference, variant, monkeypatch):
    """`per_clip` shifts as we do; `upstream` as the reference, whose shift takes every view for one
    of 16 frames in training, so that features of neighbouring clips mix."""
    if variant == "upstream":
        module = sys.modules["ffn.layers.temporal_shift"]
        shift = module.temporal_shift
        monkeypatch.setattr(
            module, "temporal_shift", lambda x, frames, divisor, causal: shift(x, 16, divisor)
        )
    family = reference.split("_")[0]
    expected = EXPECTED[family]["training_step"][variant]
    theirs = functools.partial(parity.NAMES[family], flexible=True)

    model, losses, logits = training_step(reference)
    logits = {frames: found.detach() for frames, found in logits.items()}

    for name, loss in losses.items():
        assert loss.item() == pytest.approx(expected["loss"][name], rel=1e-4)
    for frames, found in logits.items():
        stored = torch.tensor(expected["logits"][str(frames)])
        assert parity.relative_error(found, stored) < 1e-4

    gradients = {theirs(k): p.grad for k, p in model.model.named_parameters()}
    assert gradients.keys() == expected["grad_norm"].keys()
    for name, gradient in gradients.items():
        norm = expected["grad_norm"][name]
        if norm < 1e-12:  # cancelled by a norm behind it: rounding
            assert gradient.norm().item() < 1e-10, name
            continue
        assert gradient.norm().item() == pytest.approx(norm, rel=1e-4), name
        # A projection, which a permuted or negated gradient would change; at most norm * |probe|.
        probe = torch.from_numpy(parity.normal(f"0:probe:{name}", gradient.shape))
        projection = (gradient * probe).sum().item()
        stored = expected["grad_probe"][name]
        assert projection == pytest.approx(stored, rel=1e-4, abs=1e-4 * norm), name

    running = {theirs(k): b for k, b in model.model.named_buffers() if "running_" in k}
    assert running.keys() == expected["running_norm_after"].keys()
    for name, statistics in running.items():
        stored = expected["running_norm_after"][name]
        assert statistics.norm().item() == pytest.approx(stored, rel=1e-4), name

    assert {b.item() for k, b in model.model.named_buffers() if k.endswith("_tracked")} == {1}
