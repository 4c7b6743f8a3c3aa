"""Mixup, CutMix and smoothing against the formulas, and the losses of soft labels by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_toys import batch

from ffn.engine.logs.meter import top1
from ffn.engine.mixup import BatchMix

COUNTS = (2, 4, 8)
CLASSES = 3


def mixed(data, step=0, micro=0, rank=0, **options):
    return BatchMix(CLASSES, **options)(data, step=step, micro=micro, rank=rank)


def one_hot(label):
    return np.eye(CLASSES)[label.numpy()]


def before(array):
    """The video before each one in the batch, the last one before the first."""
    return np.roll(array, 1, axis=0)


def distinct_batch():
    """Neighbours have different labels, so that the share can be read from the mixed label."""
    data = batch(COUNTS, size=6)
    assert all(a != b for a, b in zip(data["label"], data["label"].roll(1), strict=True))
    return data


def share_of(label, own):
    """lambda of mixed labels: the weight of each video's own class."""
    weights = label.gather(1, own[:, None])[:, 0]
    assert weights.numpy() == pytest.approx(weights[0].item(), abs=1e-6)
    return weights[0].item()


def test_mixup_is_the_formula_for_every_view() -> None:
    data, shares = distinct_batch(), []
    for step in range(200):
        out = mixed(data, step, mixup=0.8)
        share = share_of(out["label"], data["label"])
        shares.append(share)
        y = one_hot(data["label"])
        assert out["label"].numpy() == pytest.approx(share * y + (1 - share) * before(y), abs=1e-6)
        if step > 5:
            continue
        for frames, clip in data["clips"].items():
            x = clip.double().numpy()
            expected = share * x + (1 - share) * before(x)
            np.testing.assert_allclose(out["clips"][frames].numpy(), expected, atol=1e-5)
            assert type(out["clips"][frames]) is torch.Tensor
    assert data["label"].ndim == 1  # of the batch that was given
    assert mixed(data) is data
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)  # Beta(a, a)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * 0.8 + 1)), rel=0.2)


def test_cutmix_exchanges_one_box_in_every_view() -> None:
    data, boxes = distinct_batch(), set()
    for step in range(20):
        out = mixed(data, step, cutmix=1.0)
        share = share_of(out["label"], data["label"])
        for frames, clip in data["clips"].items():
            partner = clip.roll(1, 0)
            taken = (out["clips"][frames] != clip).all((0, 1, 2))  # (H, W)
            rows, columns = taken.any(1).nonzero().flatten(), taken.any(0).nonzero().flatten()
            box = torch.zeros_like(taken)
            if len(rows):
                box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
            assert torch.equal(out["clips"][frames], torch.where(box, partner, clip))
            assert 1 - box.float().mean().item() == pytest.approx(share, abs=1e-6)
            boxes.add((step, tuple(box.flatten().tolist())))
    assert len(boxes) == 20  # one for all views
    assert len({box for _, box in boxes}) > 12


@pytest.mark.parametrize("options", [{}, {"mixup": 0.8}, {"cutmix": 1.0}])
def test_smoothing_spreads_a_share_over_all_classes(options) -> None:
    data = distinct_batch()
    hard = mixed(data, 3, **options)["label"] if options else torch.eye(CLASSES)[data["label"]]
    soft = mixed(data, 3, **options, smoothing=0.1)
    assert torch.allclose(soft["label"], 0.9 * hard + 0.1 / CLASSES)
    assert soft["label"].sum(1).numpy() == pytest.approx(1, abs=1e-6)
    if not options:
        assert soft["clips"] is data["clips"]


def test_draws_depend_on_seed_step_micro_batch_and_rank_alone() -> None:
    data = distinct_batch()
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


# --- losses -------------------------------------------------------------------------------------


def test_top1_of_soft_labels_uses_the_larger_share() -> None:
    logits = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 3.0], [0.0, -1.0, -2.0], [1.0, 2.0, 3.0]])
    label = torch.tensor([[0.3, 0.7, 0.0], [0.6, 0.0, 0.4], [0.9, 0.05, 0.05], [0.0, 0.4, 0.6]])
    assert top1(logits, label) == 0.75
