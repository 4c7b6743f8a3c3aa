"""Files that ask for too much are refused at once, with the limit and how to raise it."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from PIL import Image

import ffn
from ffn.data import EvalTransform, Preprocessing, VideoError, open_video
from ffn.limits import Limit
from ffn.serve.inputs import FramesInMemory
from ffn.zoo import WeightsError

SMALL = Preprocessing(crop=16, resize=16)


def test_a_limit_and_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit("FFN_MAX_THINGS", 3, "things")
    assert limit.refusal(3) == ""
    assert limit.refusal(1_234) == (
        "1,234 things; at most 3 are accepted (raise the limit with the environment variable "
        "FFN_MAX_THINGS)"
    )
    monkeypatch.setenv("FFN_MAX_THINGS", "2000")
    assert limit.refusal(1_234) == ""
    for text in ("", "0", "-1", "many", "1e9"):
        monkeypatch.setenv("FFN_MAX_THINGS", text)
        with pytest.raises(ValueError, match=r"FFN_MAX_THINGS is .*; expected a whole number"):
            limit.refusal(1)


def test_videos_with_large_frames(
    write_video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_video(tmp_path / "a.mp4", 4)
    monkeypatch.setenv("FFN_MAX_FRAME_PIXELS", str(64 * 48 - 1))
    with pytest.raises(VideoError, match=r"64 x 48 pixels: 3,072 pixels per frame; at most 3,071 "):
        open_video(video).read([0])
    Image.new("P", (64, 48)).save(tmp_path / "a.gif")
    with pytest.raises(VideoError, match="more pixels than FFN_MAX_FRAME_PIXELS, 3,071"):
        open_video(tmp_path / "a.gif").read([0])
    monkeypatch.setenv("FFN_MAX_FRAME_PIXELS", str(64 * 48))
    assert open_video(video).read([0]).shape == (1, 48, 64, 3)


def test_video_whose_frames_are_larger_than_its_header_says(
    write_video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two raw H.264 videos in one file: the second has larger frames."""
    parts = []
    for size in (64, 256):
        video = write_video(tmp_path / f"{size}.h264", 4, width=size, height=size)
        parts.append(Path(video).read_bytes())
    (tmp_path / "both.h264").write_bytes(b"".join(parts))

    assert open_video(tmp_path / "both.h264").read([5]).shape == (1, 256, 256, 3)
    monkeypatch.setenv("FFN_MAX_FRAME_PIXELS", str(128 * 128))
    with pytest.raises(VideoError, match=r"both\.h264"):
        open_video(tmp_path / "both.h264").read([5])


@pytest.mark.parametrize(
    ("box", "place", "flags", "options"),
    [
        ("stsz", 8, 1, {}),
        ("trun", 4, 0, {"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    ],
)
def test_files_that_claim_many_frames(box, place, flags, options, write_video, tmp_path: Path):
    """A sample table needs one size, a fragment no table, for any number of frames."""
    path = Path(write_video(tmp_path / "a.mp4", 20, container=options))
    whole = path.read_bytes()
    for count, message in ((80_000_000, "at most 8,388,608 are accepted"), (100_000, "a.mp4: ")):
        table = flags.to_bytes(4, "big") + count.to_bytes(4, "big")
        place_in_file = whole.index(box.encode()) + place
        path.write_bytes(whole[:place_in_file] + table + whole[place_in_file + 8 :])
        started = time.monotonic()
        with pytest.raises(VideoError, match=message):
            open_video(path).read([0])
        assert time.monotonic() - started < 5


def test_thin_frames(write_folder, tmp_path: Path) -> None:
    """Resized to a shorter side of 256, they would have billions of pixels."""
    with pytest.raises(VideoError, match="1 x 20000 pixels: at most 32 times"):
        open_video(write_folder(tmp_path / "a", 4, size=(1, 20_000))).read([0])
    thin = torch.zeros(2, 1, 20_000, 3, dtype=torch.uint8)
    with pytest.raises(VideoError, match="20000 x 1 pixels: at most 32 times"):
        FramesInMemory(thin).read([0])
    with pytest.raises(ValueError, match="20000 x 1 pixels: at most 32 times"):
        EvalTransform(SMALL)(thin)


def test_pipe_among_frames(write_folder, tmp_path: Path) -> None:
    pipe = Path(write_folder(tmp_path / "a", 4, first=0), "00002.jpg")
    pipe.unlink()
    os.mkfifo(pipe)
    started = time.monotonic()
    with pytest.raises(VideoError, match=r"frame 2: 00002\.jpg is not a regular file"):
        open_video(pipe.parent).read([2])
    assert time.monotonic() - started < 5


def test_texts_are_no_videos(write_video, tmp_path: Path) -> None:
    """Lists of FFmpeg would open other files, and addresses."""
    write_video(tmp_path / "video.mp4", 4)
    list_of = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"
    for name, text in (
        ("notes.txt", "hello\n" * 2000),
        ("list.mp4", "ffconcat version 1.0\nfile video.mp4\n"),
        ("list.m3u8", list_of.format("video.mp4")),
        ("address.m3u8", list_of.format("http://127.0.0.1:9/a.ts")),
        ("a.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nm=video 9 RTP/AVP 96\n"),
        ("a.mpd", '<?xml version="1.0"?><MPD profiles="urn:mpeg:dash:profile:isoff-live:2011">'),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nhello\n\n" * 20),
        ("a.svg", '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(VideoError, match="not a video"):
            open_video(tmp_path / name).read([0])


def record(**changes: Any) -> dict[str, Any]:
    plain = {"name": "a", "model": "tsm_tiny", "num_classes": 3}
    return {**plain, "preprocessing": SMALL.to_dict(), **changes}


def weights(folder: Path, text: str) -> Path:
    path = folder / "a.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".yaml").write_text(f"{text}\nsha256: {digest}\n")
    return path


def test_records_that_ask_for_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFN_MAX_RECORD_BYTES", "250000")
    for changes, message in (
        ({"trained_frames": [*range(1, 20_001)]}, "20,000 trained frame counts; at most 64"),
        ({"num_classes": 10**9}, "1,000,000,000 classes; at most 100,000"),
        ({"versions": "x" * 300_000}, "FFN_MAX_RECORD_BYTES"),
        ({"trained_frames": [4, 10**12]}, "1,000,000,000,000 frames per clip; at most 4,096"),
        ({"trained_frames": [4], "ranges": [[1, 10**12]]}, "frames per clip; at most 4,096"),
    ):
        path = weights(tmp_path, yaml.safe_dump(record(**changes)))
        started = time.monotonic()
        with pytest.raises(WeightsError, match=rf"a\.yaml is not a record of weights: .*{message}"):
            ffn.load(path)
        assert time.monotonic() - started < 10


def test_networks_larger_than_their_weights(tmp_path: Path) -> None:
    """They are compared before they take memory."""
    large = {"layers": [10**9, 1, 1, 1]}
    for changes, message in (
        ({"model_args": {"width": 1_000_000}}, "does not fit the model"),
        ({"model_args": {"width": 10**10}}, "model_args of the record .a. are"),
        ({"model_args": {"width": "x"}}, "model_args of the record .a. are"),
        ({"model": "tsm_r18", "model_args": large}, "describes a larger network"),
    ):
        path = weights(tmp_path, yaml.safe_dump(record(**changes)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(WeightsError, match=message):
            ffn.load(path)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB
