"""Early exit, against stored logits and the clips of fixed counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from serve_files import PREPROCESSING, save_network

from ffn.evaluation.early_exit import EarlyExit
from ffn.serve import Predictor
from ffn.serve.choose_frames import Always
from ffn.serve.clips import ClipReader, read_together
from ffn.zoo import state_sha256

STAGES = (2, 4, 8)


@pytest.fixture(scope="module")
def footages() -> list[np.ndarray]:
    """Videos of different lengths, brightness and contrast, so that answers differ."""
    random = np.random.default_rng(0)
    footages = []
    for number in range(30):
        shape = (int(random.integers(3, 30)), 40, 48, 3)
        pixels = random.normal(random.uniform(30, 220), 10 + 2 * number, shape)
        footages.append(pixels.clip(0, 255).astype(np.uint8))
    return footages


@pytest.fixture(scope="module")
def stored(predictor, footages) -> dict[int, torch.Tensor]:
    """Logits of the network at each count."""
    logits = {}
    for count in STAGES:
        clips = [predictor.reader(count).read(footage).pixels / 255 for footage in footages]
        clip = (torch.stack(clips) - 0.4) / 0.2  # the preprocessing, by hand
        with torch.no_grad():
            logits[count] = predictor.model(clip)
    return logits


@pytest.fixture(scope="module")
def file(tmp_path_factory, predictor, stored):
    """Three stages, each of which answers some of the videos."""
    confidence = [stored[n].double().softmax(1).amax(1) for n in STAGES[:2]]
    thresholds = tuple(float(x.quantile(0.6)) for x in confidence)
    digest = state_sha256(predictor.model.state_dict())
    path = tmp_path_factory.mktemp("early_exit") / "early_exit.json"
    EarlyExit(STAGES, thresholds, 50.0, 3.0, "tiny", digest).save(path)
    return path


@pytest.fixture(scope="module")
def exiting(weights, file) -> Predictor:
    return Predictor(weights, precision="fp32", early_exit=file)


def test_a_served_early_exit_equals_the_one_on_stored_logits(exiting, stored, footages, file):
    stage, classes = EarlyExit.load(file).answer(stored)
    assert len(stage.unique()) == 3

    one_by_one = [exiting(footage, frames="early_exit") for footage in footages]
    together = exiting(footages, frames="early_exit", batch_size=7)

    for found in (one_by_one, together):
        assert [p.frames for p in found] == [STAGES[s] for s in stage]
        assert [int(p.probabilities.argmax()) for p in found] == classes.tolist()
    place = stage.tolist().index(1)  # a video that the second stage answers
    first, expected = together[place], stored[4][place].softmax(0)
    torch.testing.assert_close(first.probabilities, expected, atol=1e-5, rtol=0)
    assert first.why == "early exit after 2, 4 frames"
    assert exiting([], frames="early_exit") == []


def test_the_times_are_those_of_all_stages(exiting, footages, monkeypatch) -> None:
    """Each forward pass, of any number of clips, takes 10 ms per clip here."""
    run = Predictor._logits
    monkeypatch.setattr(Predictor, "_logits", lambda self, clips: (run(self, clips)[0], 10.0))

    found = exiting(footages, frames="early_exit")

    assert {p.frames: p.model_ms for p in found} == {2: 10.0, 4: 20.0, 8: 30.0}
    assert all(p.decode_ms > 0 for p in found)


@pytest.mark.parametrize(("rule", "length"), [("segment", 5), ("interval", 24), ("dense", 90)])
def test_stages_have_the_clips_of_fixed_counts(rule, length) -> None:
    pixels = np.random.default_rng(length).integers(0, 256, (length, 40, 48, 3), dtype=np.uint8)
    settings = replace(PREPROCESSING, sampling=rule)
    counts = (4, 6, 12)
    readers = [ClipReader(settings, "", Always(count, "")) for count in counts]
    for reader, clip in zip(readers, read_together(readers, pixels), strict=True):
        fixed = reader.read(pixels)
        assert clip.indices == fixed.indices
        assert torch.equal(clip.pixels, fixed.pixels)


def test_no_early_exit_or_one_of_other_weights(tmp_path, file, predictor, footages) -> None:
    other = save_network(tmp_path / "other.safetensors", spread=0.07)
    with pytest.raises(ValueError, match="fitted to tiny"):
        Predictor(other, early_exit=file)
    with pytest.raises(ValueError, match="fit one"):
        predictor(footages[0], frames="early_exit")


def test_early_exit_that_ships() -> None:
    exiting = Predictor("tsm_tiny.motion_any_f2_20", precision="fp32")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 28, 28, 3), dtype=np.uint8)
    assert exiting(pixels, frames="early_exit").why.startswith("early exit after ")
