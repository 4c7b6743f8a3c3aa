"""Ensembles against the mean of the saved probabilities, computed in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_toys import CLASSES, ToyVideos, flexible, loader, plain

from ffn.data import Protocol
from ffn.evaluation import Sweep, ensemble, load_predictions, save_predictions, sweep


def swept(toys: ToyVideos, seed: int, *trained: int) -> Sweep:
    """A plain network; the frame-flexible one for seed 0."""
    model = flexible() if seed == 0 else plain(seed)
    given = {"name": f"net{seed}", "trained_frames": trained or None, "keep_logits": True}
    return sweep(model, loader(toys, batch_size=4), **given)


@pytest.fixture(scope="module", params=["1x1", "2x3"])
def networks(request: pytest.FixtureRequest) -> list[Sweep]:
    toys = ToyVideos(31, failed=(4, 20), protocol=Protocol.parse(request.param))
    return [swept(toys, 0), swept(toys, 1, 4), swept(toys, 2, 6, 4)]


def test_probabilities_are_averaged(networks: list[Sweep], tmp_path: Path) -> None:
    kept = [
        load_predictions(save_predictions(network, tmp_path / network.name)) for network in networks
    ]

    result = ensemble(networks)

    found = load_predictions(save_predictions(result, tmp_path / "ensemble"))
    ok, label = kept[0].ok.numpy(), kept[0].label.numpy()
    assert ok.sum() == 29
    assert found.paths == kept[0].paths
    assert torch.equal(found.ok, kept[0].ok)
    for row in result.rows:
        mean = np.mean([one.logits[row.frames].double().softmax(1).numpy() for one in kept], 0)
        np.testing.assert_allclose(found.logits[row.frames].exp()[ok], mean[ok], rtol=1e-5)
        order = np.argsort(-mean, 1)
        first, five = ok & (order[:, 0] == label), ok & (order[:, :5] == label[:, None]).any(1)
        per_class = [first[label == k].mean() for k in range(CLASSES) if (label == k).any()]
        expected = {"top1": first.mean(), "top5": five.mean(), "mean_class": np.mean(per_class)}
        expected = {name: 100 * value for name, value in expected.items()}
        assert row.metrics == pytest.approx(expected, abs=1e-12)
        assert (row.videos, row.failed) == (31, 2)
    assert result.failed == networks[0].failed


def test_cost_is_the_sum(networks: list[Sweep]) -> None:
    result = ensemble(networks, name="all")

    assert result.name == "all"
    assert result.params == sum(one.params for one in networks)
    for row, *rows in zip(result.rows, *(one.rows for one in networks), strict=True):
        assert {row.frames} == {one.frames for one in rows}
        assert row.gmacs == pytest.approx(3 * row.frames * (3 * 3 * 6 * 27 + 54 * 7) / 1e9)
        assert row.params == sum(one.params for one in rows)
        assert row.params < result.params  # one sub-network of the frame-flexible one
        assert row.latency_ms == pytest.approx(sum(one.latency_ms for one in rows))
        assert row.subnet is None
    assert result.trained_frames == (2, 4, 6)
    assert result.measured["networks"] == ["net0", "net1", "net2"]
    assert (result.protocol, result.crop) == (networks[0].protocol, (8, 8))


def test_a_video_that_one_network_could_not_read_is_wrong() -> None:
    readable, fewer = (swept(ToyVideos(9, failed=f), seed) for f, seed in (((), 1), ((3,), 2)))

    result = ensemble([readable, fewer])

    assert result.predictions.ok.tolist() == [i != 3 for i in range(9)]
    assert {row.failed for row in result.rows} == {1}
    assert result.failed == ("video_3.mp4: no frames",)
    assert all(row.metrics["top5"] <= 100 * 8 / 9 for row in result.rows)


def test_networks_that_were_tested_on_other_videos_are_refused(networks: list[Sweep]) -> None:
    with pytest.raises(ValueError, match="tested on different"):
        ensemble([networks[0], swept(ToyVideos(9, protocol=Protocol(2, 3)), 1)])
