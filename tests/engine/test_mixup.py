"""Mixup, CutMix and smoothing against the formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_toys import batch

from ffn.engine.mixup import BatchMix

COUNTS = (2, 4, 8)
CLASSES = 3


def mixed(data, step=0, micro=0, rank=0, **options):
    return BatchMix(CLASSES, **options)(data, step=step, micro=micro, rank=rank)


def share_of(label, own):
    """lambda of mixed labels: the weight of each video's own class, which its neighbors lack."""
    weights = label.gather(1, own[:, None])[:, 0]
    assert weights.numpy() == pytest.approx(weights[0].item(), abs=1e-6)
    return weights[0].item()


def test_mixup_is_the_formula_for_every_view() -> None:
    data, shares = batch(COUNTS, size=6), []
    for step in range(200):
        out = mixed(data, step, mixup=0.8)
        share = share_of(out["label"], data["label"])
        shares.append(share)
        y = np.eye(CLASSES)[data["label"]]
        expected = share * y + (1 - share) * np.roll(y, 1, axis=0)
        assert out["label"].numpy() == pytest.approx(expected, abs=1e-6)
        if step > 5:
            continue
        for frames, clip in data["clips"].items():
            x = clip.double().numpy()
            expected = share * x + (1 - share) * np.roll(x, 1, axis=0)
            np.testing.assert_allclose(out["clips"][frames].numpy(), expected, atol=1e-5)
            assert type(out["clips"][frames]) is torch.Tensor
    assert data["label"].ndim == 1  # of the batch that was given
    assert mixed(data) is data
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)  # Beta(a, a)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * 0.8 + 1)), rel=0.2)


@pytest.mark.parametrize("options", [{}, {"mixup": 0.8}, {"cutmix": 1.0}])
def test_smoothing_spreads_a_share_over_all_classes(options) -> None:
    data = batch(COUNTS, size=6)
    hard = mixed(data, 3, **options)["label"] if options else torch.eye(CLASSES)[data["label"]]
    soft = mixed(data, 3, **options, smoothing=0.1)
    assert torch.allclose(soft["label"], 0.9 * hard + 0.1 / CLASSES)
    assert soft["label"].sum(1).numpy() == pytest.approx(1, abs=1e-6)
    if not options:
        assert soft["clips"] is data["clips"]


def test_draws_depend_on_seed_step_micro_batch_and_rank_alone() -> None:
    data = batch(COUNTS, size=6)
    options = {"mixup": 0.8, "cutmix": 1.0, "seed": 4}
    expected = mixed(data, 3, 1, 2, **options)["label"]
    torch.manual_seed(9)
    state = torch.get_rng_state()
    assert torch.equal(mixed(data, 3, 1, 2, **options)["label"], expected)
    assert torch.equal(torch.get_rng_state(), state)
    others = [(4, 1, 2), (3, 0, 2), (3, 1, 0)]
    found = [mixed(data, *other, **options)["label"] for other in others]
    found.append(mixed(data, 3, 1, 2, **{**options, "seed": 5})["label"])
    assert len({tuple(x.flatten().tolist()) for x in [expected, *found]}) == 5


def test_several_labels_are_mixed_and_smoothed() -> None:
    """The first video has no label."""
    label = torch.tensor([[0, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1], [1, 0, 0]]).float()
    data, options = batch(COUNTS, size=5) | {"label": label}, {"mixup": 1.0, "multi_label": True}
    plain = mixed(data, **options)["label"]
    smooth = mixed(data, **options, smoothing=0.2)["label"]

    other = label.roll(1, 0)
    differs = label != other
    ratio = ((plain - other) / (label - other))[differs]
    assert ratio.numpy() == pytest.approx(ratio[0].item(), abs=1e-6)
    assert 0 < ratio[0] < 1
    torch.testing.assert_close(plain[~differs], label[~differs])
    torch.testing.assert_close(smooth, 0.8 * plain + 0.1)
    assert BatchMix(CLASSES, smoothing=0.2, multi_label=True).absent == pytest.approx(0.1)
    assert mixed(data, multi_label=True)["label"] is label
