"""Send a generated video over the network, at its own rate, as a camera does.

    python tests/send_stream.py rtsp://127.0.0.1:8554/live

A process of its own: FFmpeg connects while it holds the interpreter of its process.
"""

from __future__ import annotations

import sys
import time

import av
import numpy as np

RATE, SIZE = 25, 64
FORMATS = {"rtsp": ("rtsp", "libx264"), "udp": ("mpegts", "mpeg2video")}


def send(address: str, seconds: float = 6.0, patience: float = 60.0) -> None:
    """Connect, as soon as something listens, and send noise with a key frame every 5 frames."""
    kind, codec = FORMATS[address.partition(":")[0]]
    deadline = time.monotonic() + patience
    while True:
        try:
            output = av.open(address, "w", format=kind)
            stream = output.add_stream(codec, rate=RATE, options={"g": "5"})
            stream.height, stream.width, stream.pix_fmt = SIZE, SIZE, "yuv420p"
            output.start_encoding()
            break
        except OSError:  # nothing listens yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    random, began = np.random.default_rng(0), time.monotonic()
    for number in range(round(seconds * RATE)):
        frame = random.integers(0, 256, (SIZE, SIZE, 3), np.uint8)
        output.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
    output.mux(stream.encode())
    output.close()


if __name__ == "__main__":
    send(sys.argv[1])
