"""Predictor, against its parts called one by one."""

from __future__ import annotations

import multiprocessing
import time

import numpy as np
import pytest
import torch
from PIL import Image
from serve_files import CLASSES, PREPROCESSING, save_network

import ffn
from ffn.data import EvalTransform, VideoError, segment_center
from ffn.serve import Predictor
from ffn.serve.readers import Readers
from ffn.zoo import create_model, save_weights


def save_plain(folder, **more):
    meta = {"model": "tsm_tiny", "num_classes": 3, "preprocessing": PREPROCESSING.to_dict()}
    path = folder / "plain.safetensors"
    save_weights(create_model("tsm_tiny", num_classes=3), path, meta | more, overwrite=True)
    return path


@pytest.mark.parametrize(("frames", "active"), [(1, 2), (4, 4), (5, 4), (6, 8), (20, 8)])
def test_prediction_equals_the_network_on_the_sampled_frames(weights, pixels, frames, active):
    prediction = Predictor(weights, precision="fp32")(pixels, frames=frames)

    chosen = torch.from_numpy(pixels)[segment_center(11, frames)]
    clip = EvalTransform(PREPROCESSING)(chosen).permute(1, 0, 2, 3)[None]
    clip = (clip / 255 - 0.4) / 0.2
    with torch.inference_mode():
        expected = ffn.load(weights)(clip, active=active).softmax(1)[0]
    assert torch.allclose(prediction.probabilities, expected, atol=1e-6)
    assert (prediction.frames, prediction.active) == (frames, active)
    assert prediction.decode_ms > 0
    assert prediction.model_ms > 0
    named = sorted(
        zip(CLASSES, prediction.probabilities.tolist(), strict=True), key=lambda x: -x[1]
    )
    assert prediction.top(2) == named[:2]
    assert prediction.top(5) == named  # no more than there are classes


def test_default_is_the_largest_trained_count(weights, pixels, tmp_path):
    assert Predictor(weights)(pixels).frames == 8
    for frames in ([4], 4):
        found = Predictor(save_plain(tmp_path, config={"task": {"frames": frames}}))(pixels)
        assert (found.frames, found.active) == (4, None)
    unknown = Predictor(save_plain(tmp_path))
    assert unknown(pixels, frames=3).frames == 3
    assert {label for label, _ in unknown(pixels, 3).top()} == {"class 0", "class 1", "class 2"}
    assert unknown.gmacs(3) > 0
    for choice in ({}, {"budget_gmacs": 1.0}, {"budget_ms": 1e6}):
        with pytest.raises(ValueError, match=r"plain network.*give frames=, or --frames"):
            unknown(pixels, **choice)


def test_misuse(weights, pixels):
    predictor = Predictor(weights)
    for given, options in (
        (np.zeros((8, 4, 32, 32), np.uint8), {}),
        ([np.zeros((32, 32, 3), np.uint8)] * 8, {}),
        (pixels, {"frames": 4, "budget_ms": 3}),
        (pixels, {"budget_ms": "fast"}),
        (pixels, {"frames": 0}),
        (pixels, {"frames": 10_000}),
    ):
        with pytest.raises(ValueError, match=r"expected|give one of|accepted"):
            predictor(given, **options)
    for given, options in ((torch.zeros(8, 3, 32, 32), {}), ({}, {}), (pixels, {"frames": "8"})):
        with pytest.raises(TypeError, match="expected"):
            predictor(given, **options)


def test_building_is_no_time_of_the_network(weights, pixels, monkeypatch) -> None:
    predictor = Predictor(weights, precision="fp32")
    build = predictor._runner._build

    def slow(*arguments):
        time.sleep(1)
        return build(*arguments)

    monkeypatch.setattr(predictor._runner, "_build", slow)

    assert predictor(pixels, frames=4).model_ms < 1000


def test_the_pattern_of_frames_is_that_of_the_training(tmp_path, weights, pixels):
    """From the record, or as an argument."""
    frames, pattern = tmp_path / "frames", "img_{:05d}.png"
    frames.mkdir()
    for i, frame in enumerate(pixels):
        Image.fromarray(frame).save(frames / f"img_{i + 1:05d}.png")
    expected = Predictor(weights)(pixels).probabilities
    config = {"data": {"frame_pattern": pattern}}
    trained = save_network(tmp_path / "net.safetensors", spread=0.1, config=config)

    for predictor in (Predictor(trained), Predictor(weights, pattern=pattern)):
        assert torch.equal(predictor(frames).probabilities, expected)
    with pytest.raises(VideoError, match=r"img_\{:05d\}\.png.*--pattern"):
        Predictor(weights)(frames)


def test_readers_that_the_system_killed_are_replaced(weights, pixels):
    reader, others = Predictor(weights).reader(frames=4), multiprocessing.active_children()
    with Readers(1, 60, fork=True) as readers:
        expected = readers.read([reader], pixels)[0]
        for worker in {*multiprocessing.active_children()} - {*others}:
            worker.kill()
            worker.join()
        time.sleep(0.5)  # the pool finds out
        assert torch.equal(readers.read([reader], pixels)[0].pixels, expected.pixels)
