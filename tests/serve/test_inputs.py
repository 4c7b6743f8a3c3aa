"""What a predictor reads, and the numbers of frames that it chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image
from serve_files import save_network, write_video

import ffn
from ffn.data import ClipStore, Record, VideoError, pack
from ffn.serve import Predictor, choose_frames


def test_bytes_give_the_prediction_of_the_file(predictor, mp4) -> None:
    expected = predictor(mp4, frames=4)
    content = mp4.read_bytes()
    for given in (content, bytearray(content), memoryview(content)):
        found = predictor(given, frames=4)
        assert torch.equal(found.probabilities, expected.probabilities)
        assert found.path == f"{len(content):,} bytes"
    for broken in (b"", b"no video", content[:300]):
        with pytest.raises(VideoError) as caught:
            predictor(broken, frames=4)
        assert caught.value.path == f"{len(broken):,} bytes"
        assert "/ffn-" not in str(caught.value)  # the temporary file


def test_frames_in_memory_give_the_prediction_of_the_folder(weights, pixels, tmp_path) -> None:
    predictor = Predictor(weights, precision="fp32", pattern="{:05d}.png")
    for i, frame in enumerate(pixels):
        Image.fromarray(frame).save(tmp_path / f"{i + 1:05d}.png")
    expected = predictor(tmp_path, frames=5).probabilities
    read_only = pixels.copy()
    read_only.flags.writeable = False
    for given in (pixels, read_only, torch.from_numpy(pixels).permute(0, 3, 1, 2)):
        found = predictor(given, frames=5)
        assert torch.equal(found.probabilities, expected)
        assert found.path == "11 frames in memory"


def test_videos_of_a_store_give_the_prediction_of_the_file(predictor, mp4, tmp_path) -> None:
    """Also their times: "auto" and windows use them."""
    records = [Record(str(mp4), 0), Record(str(mp4), 0, start=0.1, end=0.45)]
    pack(records, tmp_path / "s", root=mp4.parent)
    for place in (str(tmp_path / "s"), f"file://{tmp_path / 's'}"):
        store = ClipStore(place, root=mp4.parent, cache=tmp_path / "cache")
        stored, part = (store.open_record(record) for record in records)
        for frames in (4, "auto"):
            expected, found = predictor([mp4, stored], frames=frames)
            assert torch.allclose(found.probabilities, expected.probabilities, atol=0.05)
            assert (found.frames, found.path) == (expected.frames, "noise.mp4")
        several = [
            [(w.start, w.end) for w in predictor.windows(one, seconds=0.2, frames=2)]
            for one in (mp4, stored)
        ]
        assert several[0] == several[1]
        (window,) = predictor.windows(part, seconds=1, frames=2)
        assert (window.start, window.end) == pytest.approx((0, 0.35))  # 7 frames, 20 per second


def test_a_list_gives_the_predictions_of_its_videos(predictor, mp4, pixels) -> None:
    videos = [mp4, pixels, mp4.read_bytes(), str(mp4), pixels[:3], mp4]
    one_by_one = [predictor(video, frames="auto") for video in videos]

    for batch_size in (1, 2, 8):
        found = predictor(videos, frames="auto", batch_size=batch_size)
        assert [one.frames for one in found] == [5, 11, 5, 5, 3, 5]
        for one, expected in zip(found, one_by_one, strict=True):
            torch.testing.assert_close(one.probabilities, expected.probabilities)
            assert (one.path, one.why) == (expected.path, expected.why)
    assert predictor([]) == []
    with pytest.raises(VideoError, match=r"missing\.mp4"):
        predictor([mp4, "missing.mp4"])


@pytest.mark.parametrize(
    ("frames", "rate", "expected", "why"),
    [
        (11, 20, 5, "auto: of 11 in 0.6 s"),  # 8 x 0.55 s = 4.4, rounded up
        (11, 4, 11, "auto: of 11 in 2.8 s"),
        (40, 20, 12, "auto: of 40 in 2.0 s"),
        (2, 20, 2, "auto: of 2 in 0.1 s"),
    ],
)
def test_auto_takes_no_frame_twice_and_eight_per_second(
    weights, tmp_path, frames, rate, expected, why
) -> None:
    video = np.random.default_rng(0).integers(0, 256, (frames, 32, 32, 3), dtype=np.uint8)
    path = write_video(tmp_path / "video.mp4", video, rate=rate)
    found = Predictor(weights)(path, frames="auto")
    assert (found.frames, found.why) == (expected, why)


def test_counts_are_those_of_the_training(weights, tmp_path) -> None:
    predictor = Predictor(weights)
    assert predictor.counts == list(range(2, 13))
    fixed = Predictor(save_network(tmp_path / "fixed.safetensors", ranges={4: (4, 4), 8: (8, 8)}))
    assert fixed.counts == [4, 8]
    fixed.model.interpolate = True
    assert fixed.counts == [4, 5, 6, 7, 8]


def test_a_budget_of_arithmetic(predictor, mp4) -> None:
    """The arithmetic of TSM is proportional to the number of frames."""
    clip = torch.zeros(1, 3, 6, 32, 32)
    per_frame = ffn.evaluation.count_macs(predictor.model, clip) / 6 / 1e9

    for count in (2, 5, 12):
        assert predictor(mp4, budget_gmacs=per_frame * (count + 0.5)).frames == count
    assert predictor(mp4, budget_gmacs=1e6).frames == 12
    with pytest.raises(ValueError, match=r"budget_gmacs is 1e-06; the smallest count, 2 frames"):
        predictor(mp4, budget_gmacs=1e-6)


def test_a_budget_of_time_reads_a_table_that_is_measured_once(
    weights, mp4, home, monkeypatch
) -> None:
    """2, 4, 8 and 12 frames take 20, 40, 80 and 120 ms; between them, linearly."""
    calls = []

    def measured(run, clip, **_) -> float:
        calls.append(clip.shape[2])
        return 10.0 * clip.shape[2]

    monkeypatch.setattr(choose_frames, "measure_latency", measured)
    predictor = Predictor(weights, precision="fp32")
    for budget, count, why in (
        (20, 2, "within 20 ms: 20 ms"),
        (79.9, 7, "within 79.9 ms: 70 ms"),
        (80, 8, "within 80 ms: 80 ms"),
        (1000, 12, "within 1000 ms: 120 ms"),
    ):
        found = predictor(mp4, budget_ms=budget)
        assert (found.frames, found.why) == (count, why)
    with pytest.raises(ValueError, match="the smallest count, 2 frames, takes 20 ms"):
        predictor(mp4, budget_ms=5)
    assert calls == [2, 4, 8, 12]

    assert Predictor(weights, precision="fp32")(mp4, budget_ms=50).frames == 5
    assert calls == [2, 4, 8, 12]  # from the file
    Predictor(weights, precision="bf16")(mp4, budget_ms=50)
    assert len(calls) == 8  # another precision is measured
    (first, second) = json.loads((home / "latencies.json").read_text())
    assert "torch, fp32" in first
    assert f"ffn {ffn.__version__}" in first  # another version may be faster
    assert "torch, bf16" in second


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """Address of a server of the files in `tmp_path`."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_is_repeated(predictor, mp4, server, tmp_path, monkeypatch) -> None:
    """After an answer 503, and after a connection that is cut in the middle."""
    expected, answers = predictor(mp4, frames=4), ["busy", "cut", "whole"]
    (tmp_path / mp4.name).write_bytes(mp4.read_bytes())
    send = SimpleHTTPRequestHandler.do_GET

    def answer(handler) -> None:
        kind = answers.pop(0)
        if kind == "busy":
            handler.send_error(503)
        elif kind == "cut":
            handler.send_response(200)
            handler.send_header("Content-Length", str(mp4.stat().st_size))
            handler.end_headers()
            handler.wfile.write(mp4.read_bytes()[:-100])
        else:
            send(handler)

    monkeypatch.setattr(SimpleHTTPRequestHandler, "do_GET", answer)
    monkeypatch.setattr("ffn.data.store.remote.WAITS", (0, 0))
    found = predictor(f"{server}/{mp4.name}", frames=4)
    assert torch.equal(found.probabilities, expected.probabilities)
    assert not answers


def test_addresses(predictor, mp4, server, tmp_path, monkeypatch) -> None:
    expected = predictor(mp4, frames=4)
    (tmp_path / "a video.mp4").write_bytes(mp4.read_bytes())
    for address in (f"{server}/a%20video.mp4", f"file://{tmp_path}/a video.mp4"):
        found = predictor(address, frames=4)
        assert torch.equal(found.probabilities, expected.probabilities)
        assert found.path == address

    (tmp_path / "page.mp4").write_text("<html>not found</html>")
    for address, cause in (
        (f"{server}/missing.mp4", "404 Client Error"),
        (f"{server}/page.mp4", "not a video"),
        (f"file://{tmp_path}/missing.mp4", "cannot be downloaded: .*No such file"),
        ("nothing://host/video.mp4", "cannot be downloaded: .*Protocol not known"),
    ):
        password = "s3/cr@t" if "nothing" in address else "s3cr@t"
        secret = address.replace("://", f"://me:{password}@")
        for given in (address, secret) if "file" not in address else (address,):
            with pytest.raises(VideoError, match=cause) as caught:
                predictor(given, frames=4)
            assert caught.value.path == address
            assert "s3" not in str(caught.value)
        assert "/ffn-" not in str(caught.value)
    (tmp_path / "large.mp4").write_bytes(bytes(2000))
    monkeypatch.setenv("FFN_MAX_DOWNLOAD_BYTES", "1000")
    for address in (f"{server}/large.mp4", f"file://{tmp_path}/large.mp4"):
        with pytest.raises(VideoError, match="FFN_MAX_DOWNLOAD_BYTES"):
            predictor(address, frames=4)
