"""Predictor, against its parts called one by one, and the predict command."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

import ffn
from ffn.data import EvalTransform, Preprocessing, VideoError, decode, segment_center
from ffn.serve import Predictor
from ffn.zoo import create_model, save_weights

CLASSES = ["up", "down", "still"]
PREPROCESSING = Preprocessing(crop=32, resize=36, mean=(0.4,) * 3, std=(0.2,) * 3)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A frame-flexible network of 2 and 8 frames, whose sub-networks differ."""
    torch.manual_seed(0)
    model = ffn.convert(create_model("tsm_tiny", num_classes=3), (2, 8)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return save(tmp_path_factory.mktemp("weights"), model, [2, 8])


def save(folder, model, trained_frames, **more):
    path = folder / "tiny.safetensors"
    meta = {
        "model": "tsm_tiny",
        "num_classes": 3,
        "classes": CLASSES,
        "trained_frames": trained_frames,
        "preprocessing": PREPROCESSING.to_dict(),
    }
    save_weights(model, path, meta | more, overwrite=True)
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """Eleven frames of noise, as a folder of images."""
    folder = tmp_path_factory.mktemp("video")
    pixels = np.random.default_rng(0).integers(0, 256, (11, 40, 48, 3), dtype=np.uint8)
    for i, frame in enumerate(pixels):
        Image.fromarray(frame).save(folder / f"{i + 1:05d}.jpg")
    return folder


@pytest.fixture(scope="module")
def mp4(tmp_path_factory):
    """Eleven frames of noise, as an mp4 file."""
    import av

    path = tmp_path_factory.mktemp("mp4") / "video.mp4"
    pixels = np.random.default_rng(1).integers(0, 256, (11, 40, 48, 3), dtype=np.uint8)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 48, 40, "yuv420p"
        for frame in pixels:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        output.mux(stream.encode())
    return path


@pytest.mark.parametrize(("frames", "active"), [(1, 2), (4, 2), (5, 8), (8, 8), (20, 8)])
def test_prediction_equals_the_network_on_the_sampled_frames(weights, video, frames, active):
    prediction = Predictor(weights, precision="fp32")(video, frames=frames)

    pixels = decode(video, segment_center(11, frames))
    clip = EvalTransform(PREPROCESSING)(pixels).permute(1, 0, 2, 3)[None]
    clip = (clip / 255 - 0.4) / 0.2
    with torch.inference_mode():
        expected = ffn.load(weights)(clip, active=active).softmax(1)[0]
    assert torch.allclose(prediction.probabilities, expected, atol=1e-6)
    assert (prediction.frames, prediction.active) == (frames, active)
    assert prediction.decode_ms > 0
    assert prediction.model_ms > 0


def test_threads_with_different_frames_get_their_own_answers(weights, video):
    predictor = Predictor(weights)
    frames = [1 + n % 9 for n in range(0, 48 * 4, 4)]
    expected = {n: predictor(video, frames=n) for n in set(frames)}

    with ThreadPoolExecutor(8) as pool:
        predictions = list(pool.map(partial(predictor, video), frames))

    for n, prediction in zip(frames, predictions, strict=True):
        assert prediction.active == expected[n].active
        torch.testing.assert_close(prediction.probabilities, expected[n].probabilities)


def test_top_labels_are_sorted(weights, video):
    prediction = Predictor(weights)(video)
    top = prediction.top(2)
    probabilities = dict(zip(CLASSES, prediction.probabilities.tolist(), strict=True))
    assert top == sorted(probabilities.items(), key=lambda item: -item[1])[:2]
    assert sum(p for _, p in prediction.top(5)) == pytest.approx(1)
    assert len(prediction.top(5)) == 3  # no more than there are classes


def test_default_is_the_largest_trained_count(weights, video, tmp_path):
    assert Predictor(weights)(video).frames == 8

    plain = create_model("tsm_tiny", num_classes=3)
    trained = save(tmp_path, plain, None, config={"task": {"frames": [4]}})
    prediction = Predictor(trained)(video)
    assert (prediction.frames, prediction.active) == (4, None)

    for config in ({"task": {"frames": 4}}, {"task": {"frames": [4]}, "data": None}):
        assert Predictor(save(tmp_path, plain, None, config=config))(video).frames == 4
    for config in ({"data": {"frame_pattern": "{:05d}.jpg"}}, {"task": None}, {"task": {}}):
        unknown = Predictor(save(tmp_path, plain, None, config=config))
        with pytest.raises(ValueError, match="plain network"):
            _ = unknown.trained_frames
    unknown = Predictor(save(tmp_path, plain, None))
    with pytest.raises(ValueError, match=r"plain network.*give frames=, or --frames"):
        unknown(video)
    assert unknown(video, frames=3).frames == 3
    assert unknown.gmacs(3) == Predictor(trained).gmacs(3)
    for budget in ({"budget_gmacs": 1.0}, {"budget_ms": 1e6}):
        with pytest.raises(ValueError, match=r"plain network.*give frames=, or --frames"):
            unknown(video, **budget)


def test_unnamed_classes_have_numbers(video, tmp_path):
    path = save(tmp_path, create_model("tsm_tiny", num_classes=3), None, classes=None)
    assert {label for label, _ in Predictor(path)(video, 2).top()} == {
        "class 0",
        "class 1",
        "class 2",
    }


def test_unreadable_video_and_zero_frames_are_errors(weights, video, tmp_path):
    predictor = Predictor(weights)
    with pytest.raises(VideoError, match="no such file"):
        predictor(tmp_path / "none.mp4")
    with pytest.raises(ValueError, match="frames is 0"):
        predictor(video, frames=0)


def test_misuse(weights, video):
    predictor = Predictor(weights)
    for given, options in (
        (np.zeros((8, 4, 32, 32), np.uint8), {}),
        ([np.zeros((32, 32, 3), np.uint8)] * 8, {}),
        (video, {"frames": 4, "budget_ms": 3}),
        (video, {"budget_ms": "fast"}),
        (video, {"frames": 10_000}),
        ([video], {"batch_size": 0}),
    ):
        with pytest.raises(ValueError, match=r"expected|give one of|accepted"):
            predictor(given, **options)
    for given, options in ((torch.zeros(8, 3, 32, 32), {}), ({}, {}), (video, {"frames": "8"})):
        with pytest.raises(TypeError, match="expected"):
            predictor(given, **options)


def test_the_time_of_the_network_does_not_include_its_building(weights, video, monkeypatch) -> None:
    predictor = Predictor(weights, precision="fp32")
    build = predictor._runner._build

    def slow(*arguments):
        time.sleep(1)
        return build(*arguments)

    monkeypatch.setattr(predictor._runner, "_build", slow)

    assert predictor(video, frames=4).model_ms < 1000


def test_the_pattern_of_frames_is_that_of_the_training(tmp_path, weights, video):
    """From the record, or as an argument; before, only 00001.jpg was read."""
    (tmp_path / "frames").mkdir()
    for path in video.iterdir():
        (tmp_path / "frames" / f"img_{path.name}").write_bytes(path.read_bytes())
    expected = Predictor(weights)(video).probabilities
    config = {"data": {"frame_pattern": "img_{:05d}.jpg"}, "task": {"frames": [2, 8]}}
    trained = save(tmp_path, Predictor(weights).model, [2, 8], config=config)

    assert torch.equal(Predictor(trained)(tmp_path / "frames").probabilities, expected)
    given = Predictor(weights, pattern="img_{:05d}.jpg")
    assert torch.equal(given(tmp_path / "frames").probabilities, expected)
    assert torch.equal(Predictor(trained, pattern="{:05d}.jpg")(video).probabilities, expected)
    with pytest.raises(VideoError, match=r"the first is img_00001\.jpg"):
        Predictor(weights)(tmp_path / "frames")
