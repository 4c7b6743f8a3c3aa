"""Served cascades, against the offline cascade on stored logits and the clips of fixed counts."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from serve_files import CLASSES, PREPROCESSING, save_network, write_video

from ffn.cli.predict import main
from ffn.data import VideoError
from ffn.datasets.synthetic import CLASSES as CLASS_NAMES
from ffn.datasets.synthetic import draw
from ffn.evaluation import Predictions
from ffn.evaluation.cascades.calibration import fit_calibration
from ffn.evaluation.cascades.file import CascadeFile, path_digests
from ffn.evaluation.cascades.fit import CascadeFit, Point
from ffn.serve import Predictor
from ffn.serve.clips import ClipReader, Windows
from ffn.serve.stages import StageClips, open_stages
from ffn.zoo import state_sha256

STAGES = (2, 4, 8)
GMACS = {2: 1.0, 4: 2.0, 8: 4.0}


@pytest.fixture(scope="module")
def films() -> list[np.ndarray]:
    """Films of different lengths, brightness and contrast, so that answers differ."""
    random = np.random.default_rng(0)
    films = []
    for number in range(30):
        shape = (int(random.integers(3, 30)), 40, 48, 3)
        pixels = random.normal(random.uniform(30, 220), 10 + 2 * number, shape)
        films.append(pixels.clip(0, 255).astype(np.uint8))
    return films


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return save_network(tmp_path_factory.mktemp("weights") / "spread.safetensors", spread=0.2)


@pytest.fixture(scope="module")
def plain(weights) -> Predictor:
    return Predictor(weights, precision="fp32")


@pytest.fixture(scope="module")
def stored(plain, films) -> Predictions:
    """Logits of the network at each count; labels are the answers at 8, some changed."""
    logits = {}
    for count in STAGES:
        clips = [plain.reader(count).read(film).pixels / 255 for film in films]
        clip = (torch.stack(clips) - 0.4) / 0.2  # the preprocessing, by hand
        with torch.no_grad():
            logits[count] = plain.model(clip)
    label = logits[8].argmax(1)
    label[::3] = (label[::3] + 1) % 3
    ok = torch.ones(len(films), dtype=torch.bool)
    return Predictions(tuple(f"{n}.mp4" for n in range(len(films))), label, ok, logits)


@pytest.fixture(scope="module")
def file(tmp_path_factory, plain, stored):
    """A cascade of three stages, each of which answers some of the films."""
    given = {STAGES[: n + 1]: [stored.logits[m] for m in STAGES[: n + 1]] for n in range(3)}
    fits = {stack: fit_calibration(x, stored.label, 0.01) for stack, x in given.items()}
    confidence = [fits[stack](x).softmax(1).amax(1) for stack, x in given.items()]
    thresholds = tuple(float(x.quantile(0.6)) - 1e-4 for x in confidence[:2])
    chosen = Point(STAGES, thresholds, 50.0, 3.0)
    fit = CascadeFit(GMACS, len(stored.paths), fits, (chosen,), dict.fromkeys(STAGES, 50.0))
    path = tmp_path_factory.mktemp("cascade") / "cascade.safetensors"
    digest = state_sha256(plain.model.state_dict())
    CascadeFile(fit, chosen, digest, "tiny", CLASSES, path_digests(stored.paths)).save(path)
    return path


@pytest.fixture(scope="module")
def predictor(weights, file) -> Predictor:
    return Predictor(weights, precision="fp32", cascade=file)


def test_a_served_cascade_equals_the_one_on_stored_logits(predictor, stored, films, file) -> None:
    expected = CascadeFile.load(file).cascade.run(stored.logits)
    assert len(expected.stage.unique()) == 3

    one_by_one = [predictor(film, frames="cascade") for film in films]
    together = predictor(films, frames="cascade", batch_size=7)

    for found in (one_by_one, together):
        assert [p.frames for p in found] == [STAGES[s] for s in expected.stage]
        probabilities = torch.stack([p.probabilities for p in found])
        torch.testing.assert_close(
            probabilities.double(), expected.probabilities, atol=1e-5, rtol=0
        )
        assert [p.active for p in found] == [p.frames for p in found]
    assert predictor([], frames="cascade") == []


def test_the_prediction_says_which_stages_ran(predictor, films, file) -> None:
    first, second = CascadeFile.load(file).chosen.thresholds
    texts = {p.frames: p for p in predictor(films, frames="cascade")}

    confidence = float(texts[2].probabilities.max())
    assert texts[2].why == f"cascade: 2 frames {confidence:.3f} >= {first:.3f}"
    assert texts[4].why.startswith("cascade: 2 frames 0.")
    assert f" < {first:.3f}, 4 frames " in texts[4].why
    assert texts[4].why.endswith(f" >= {second:.3f}")
    assert texts[8].why.endswith(f" < {second:.3f}, 8 frames")
    assert texts[2].how.startswith(f"2 frames ({texts[2].why}), sub-network 2")


def test_the_times_are_those_of_all_stages(predictor, films, monkeypatch) -> None:
    """Each forward pass, of any number of clips, takes 10 ms per clip here."""
    run = Predictor._logits
    monkeypatch.setattr(Predictor, "_logits", lambda self, clips: (run(self, clips)[0], 10.0))

    found = predictor(films, frames="cascade")

    assert {p.frames: p.model_ms for p in found} == {2: 10.0, 4: 20.0, 8: 30.0}
    assert all(p.decode_ms > 0 for p in found)


def test_threads_get_the_answers_of_one_thread(predictor, films) -> None:
    expected = [predictor(film, frames="cascade") for film in films]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda film: predictor(film, frames="cascade"), films * 2))

    for one, other in zip(expected * 2, found, strict=True):
        assert one.why == other.why
        torch.testing.assert_close(one.probabilities, other.probabilities, atol=1e-6, rtol=0)


class Recorder:
    """A video that notes which frames are decoded."""

    path = "recorded"

    def __init__(self, pixels: np.ndarray, keyframes: int | None = None) -> None:
        self.pixels, self.decoded = torch.from_numpy(pixels), []
        if keyframes is not None:
            self.timeline = SimpleNamespace(
                keyframe_times=np.arange(keyframes), seconds=np.arange(len(pixels)) / 10
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, indices) -> torch.Tensor:
        self.decoded.append(list(indices))
        return self.pixels[indices]


@pytest.mark.parametrize("rule", ["segment", "interval", "dense"])
@pytest.mark.parametrize("length", [1, 5, 24, 90])
def test_stages_have_the_clips_of_fixed_counts_and_decode_no_frame_twice(rule, length) -> None:
    pixels = np.random.default_rng(length).integers(0, 256, (length, 40, 48, 3), dtype=np.uint8)
    settings = type(PREPROCESSING)(**{**vars(PREPROCESSING), "sampling": rule})
    video = Recorder(pixels)
    clips = StageClips("recorded", video, (4, 6, 12), settings)
    needed: set[int] = set()
    for count in (4, 6, 12):
        fixed = ClipReader(settings, "", lambda part, n=count: (n, "")).read(pixels)
        clip = clips.read(count)
        assert clip.indices == fixed.indices
        assert torch.equal(clip.pixels, fixed.pixels)
        needed |= {*fixed.indices}
        assert sorted(i for group in video.decoded for i in group) == sorted(needed)


def test_a_file_with_few_keyframes_is_decoded_at_once() -> None:
    pixels = np.zeros((40, 8, 8, 3), dtype=np.uint8)
    for keyframes, groups in ((1, 1), (3, 1), (4, 2), (None, 2)):
        video = Recorder(pixels, keyframes)
        clips = StageClips("recorded", video, (4, 16), PREPROCESSING)
        clips.read(4)
        assert len(video.decoded[0]) == (20 if groups == 1 else 4)
        clips.read(16)
        assert len(video.decoded) == groups


def test_the_stages_of_a_file(tmp_path, plain) -> None:
    """Through a decoder: the clips of a lossless file, whose frames are known."""
    pixels = np.random.default_rng(3).integers(0, 256, (20, 40, 48, 3), dtype=np.uint8)
    path = write_video(tmp_path / "noise.mp4", pixels, rate=20)
    with open_stages(path, (2, 6), PREPROCESSING, "") as (clips, opened_ms):
        for count in (2, 6):
            expected = plain.reader(count).read(pixels)
            assert torch.equal(clips.read(count).pixels, expected.pixels)
            assert clips.read(count).seconds == plain.reader(count).read(path).seconds == 1.0
    assert opened_ms > 0


def test_thin_frames_are_an_error_of_their_video(plain, monkeypatch) -> None:
    """Of cascades, whole videos and windows; resized, they are larger than the limit."""
    monkeypatch.setenv("FFN_MAX_FRAME_PIXELS", "5000")
    thin = np.zeros((10, 4, 48, 3), dtype=np.uint8)
    reader = plain.reader(2)
    with (
        pytest.raises(VideoError, match=r"frames of 48 x 4 pixels.*would have 15,552 pixels"),
        open_stages(thin, (2, 4), PREPROCESSING, "") as (clips, _),
    ):
        clips.read(2)
    for read in (
        lambda: reader.read(thin),
        lambda: [*reader.read_windows(thin, Windows(1, fps=5))],
    ):
        with pytest.raises(VideoError, match="with a shorter side of 36"):
            read()


def test_a_cascade_of_other_weights_is_refused(tmp_path, file, weights) -> None:
    other = save_network(tmp_path / "other.safetensors", spread=0.21)
    with pytest.raises(ValueError, match=r"belongs to tiny with SHA-256 .*Fit a cascade to these"):
        Predictor(other, cascade=file)
    with pytest.raises(FileNotFoundError, match=r"no file .*none"):
        Predictor(weights, cascade=tmp_path / "none")


def test_a_cascade_that_is_kept_with_its_weights(
    tmp_path, films, weights, file, predictor, capsys
) -> None:
    kept = tmp_path / "kept.safetensors"
    for end in (".safetensors", ".yaml"):
        shutil.copy(weights.with_suffix(end), kept.with_suffix(end))
    shutil.copy(file, tmp_path / "kept.cascade.safetensors")
    expected = predictor(films[:8], frames="cascade")
    found = Predictor(kept, precision="fp32")(films[:8], frames="cascade")
    assert [one.why for one in found] == [one.why for one in expected]

    video = write_video(tmp_path / "film.mp4", films[0], rate=20)
    given = [str(video), "--weights", str(kept), "--precision", "fp32", "--frames", "cascade"]
    assert main([*given, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"] == expected[0].why
    assert main([*given, "--window", "1"]) == 2
    assert "a cascade is for whole videos" in capsys.readouterr().err
    (tmp_path / "list.txt").write_text("film.mp4\n")
    assert main([str(tmp_path / "list.txt"), *given[1:], "--output", str(tmp_path / "o.csv")]) == 2
    assert "--frames cascade is not for lists of videos" in capsys.readouterr().err

    for end in (".safetensors", ".yaml"):
        kept.with_suffix(end).unlink()
    save_network(kept, spread=0.3)  # trained on: the cascade is not that of these weights
    with pytest.raises(ValueError, match="Fit a cascade to these weights"):
        Predictor(kept, precision="fp32")(films[0], frames="cascade")


def test_the_cascade_that_ships() -> None:
    film = draw(CLASS_NAMES[0], size=24, frames=40, rng=np.random.default_rng(0))
    predictor = Predictor("tsm_tiny.motion_any_f2_20", precision="fp32")
    prediction = predictor(film, frames="cascade")
    assert prediction.frames in (6, 12)
    assert prediction.why.startswith("cascade: 6 frames 0.")


def test_a_cascade_is_for_whole_videos(predictor, plain, films) -> None:
    with pytest.raises(
        ValueError, match=r"no cascade for .*spread\.safetensors; fit one with ffn c"
    ):
        plain(films[0], frames="cascade")
    with pytest.raises(ValueError, match='frames is "cascade", which is for whole videos'):
        predictor.windows(films[0], 1.0, fps=10, frames="cascade")
    with pytest.raises(ValueError, match="got frames='cascade' and budget_gmacs=1"):
        predictor(films[0], frames="cascade", budget_gmacs=1)


def test_the_command_predicts_with_a_cascade(
    tmp_path, films, weights, file, predictor, capsys
) -> None:
    paths = [write_video(tmp_path / f"{n}.mp4", films[n], rate=20) for n in (0, 7)]
    given = [*map(str, paths), "--weights", str(weights), "--precision", "fp32"]
    given += ["--cascade", str(file)]

    assert main([*given, "--format", "json", "--save", str(tmp_path / "{name}.png")]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = predictor(paths, frames="cascade")
    assert [line["why"] for line in lines] == [p.why for p in expected]
    assert [line["frames"] for line in lines] == [p.frames for p in expected]
    assert (tmp_path / "0.png").is_file()
    for more, message in (
        (["--window", "1"], "a cascade is for whole videos"),
        (["--output", str(tmp_path / "t.csv")], "--"),
    ):
        assert main([*given, *more]) == 2
        assert message in capsys.readouterr().err
    one = [given[0], *given[2:], "--output", str(tmp_path / "t.csv")]
    assert main(one) == 2
    assert "--cascade is not for lists of videos; leave out --output" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*given, "--frames", "4"])
    assert "not allowed with argument" in capsys.readouterr().err
