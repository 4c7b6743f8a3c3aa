"""Weights and videos that tests of predictions share, and choices that end or block a worker."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import av
import numpy as np
import torch

import ffn
from ffn.data import Preprocessing
from ffn.serve import Prediction
from ffn.serve.clips import Choice
from ffn.zoo import create_model, save_weights

PREPROCESSING = Preprocessing(crop=32, resize=36, mean=(0.4,) * 3, std=(0.2,) * 3)
RANGES = {2: (2, 3), 4: (4, 5), 8: (6, 12)}
CLASSES = ("up", "down", "still")


def save_network(
    path: Path,
    *,
    ranges: Mapping[int, tuple[int, int]] = RANGES,
    spread: float = 0.0,
    **more: object,
) -> Path:
    """A network of a sub-network per range of counts.

    Args:
        path: of the weights.
        ranges: of counts, by the trained count.
        spread: of noise on all parameters, so that videos have different labels.
        more: of the record.
    """
    torch.manual_seed(0)
    plain = create_model("tsm_tiny", num_classes=3, **more.get("model_args", {}))
    model = ffn.convert(plain, ranges).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    meta = {
        "model": "tsm_tiny",
        "num_classes": 3,
        "classes": list(CLASSES),
        "trained_frames": [*ranges],
        "ranges": [list(ends) for ends in ranges.values()],
        "preprocessing": PREPROCESSING.to_dict(),
    }
    save_weights(model, path, meta | more)
    return path


def write_video(path: Path, frames: np.ndarray, rate: int, codec: str = "libx264rgb") -> Path:
    """Frames (T, H, W, 3), `rate` per second; lossless but for libx264."""
    formats = {
        "libx264rgb": ("rgb24", {"qp": "0"}),
        "ffv1": ("bgr0", {}),
        "libx264": ("yuv420p", {}),
    }
    with av.open(str(path), "w") as output:
        pix_fmt, options = formats[codec]
        stream = output.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pix_fmt
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        output.mux(stream.encode())
    return path


def answer(probabilities: Sequence[float], classes: Sequence[str], **more: object) -> Prediction:
    """A prediction of a network that did not run."""
    given = {"path": "a.mp4", "frames": 4, "active": 4, "network": "simulated"}
    given |= {"decode_ms": 0.0, "model_ms": 0.0, **more}
    return Prediction(probabilities=torch.tensor(probabilities), classes=tuple(classes), **given)


@dataclass(frozen=True)
class Ends:
    """A choice of a number of frames that ends the process, as a decoder that crashes."""

    def __call__(self, frames: int, seconds: float | None) -> tuple[int, str]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return 1, ""


@dataclass(frozen=True)
class Blocks:
    """A choice that blocks the process."""

    def __call__(self, frames: int, seconds: float | None) -> tuple[int, str]:
        time.sleep(600)
        return 1, ""


@dataclass(frozen=True)
class At:
    """One choice for videos of so many frames, and another one for others."""

    frames: int
    choose: Choice
    other: Choice

    def __call__(self, frames: int, seconds: float | None) -> tuple[int, str]:
        choose = self.choose if frames == self.frames else self.other
        return choose(frames, seconds)


def ask(address: str, *request: object) -> http.client.HTTPResponse:
    """The answer to a method, path, body and headers."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    connection.request(*request)
    return connection.getresponse()


UPLOAD = "/gradio_api/upload"
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
PART = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.mp4"\r\n\r\n%b\r\n'


def upload(address: str, video: Path) -> bytes:
    """Upload a video as the page's scripts do; returns the paths as JSON."""
    return ask(address, "POST", UPLOAD, PART % video.read_bytes() + b"--x--\r\n", FORM).read()


def ask_the_page(address: str, *data: object) -> dict:
    """The last event of an answer of the page, as its scripts ask for it."""
    with urlopen(f"{address}/config") as config:
        events = json.load(config)["dependencies"]
    (event,) = [one["id"] for one in events if len(one["inputs"]) == len(data)]
    body = {"data": data, "fn_index": event, "session_hash": "a"}
    json_type = {"Content-Type": "application/json"}
    request = Request(f"{address}/gradio_api/queue/join", json.dumps(body).encode(), json_type)
    urlopen(request).close()
    with urlopen(f"{address}/gradio_api/queue/data?session_hash=a", timeout=60) as lines:
        line = next(line for line in lines if b"process_completed" in line)
    return json.loads(line.removeprefix(b"data:"))
