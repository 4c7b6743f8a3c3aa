"""A long stream on one core: bounded latency and memory, a number of frames that follows the load.

python examples/live_under_load.py              # 30 minutes at twice their rate: takes 15 minutes
python examples/live_under_load.py --minutes 2  # takes one minute
python examples/live_under_load.py --causal     # each frame runs once

A generated video is played again and again. In the second third of the time, other processes
compete for the core. Writes live.jsonl and live.png. The network is the one that ships with ffn, or
a causal one with random weights. Its frames are so large that it takes a third of the core's time;
its labels are wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import timeit
from contextlib import redirect_stdout
from pathlib import Path

import av
import matplotlib.pyplot as plt
import numpy as np
import torch

import ffn
from ffn.cli import main
from ffn.datasets.synthetic import CLASSES, draw
from ffn.serve import Predictor
from ffn.zoo import load_with_record, save_weights

SHIPPED, SIZE = "tsm_tiny.motion_f4_8_16", 112  # of the video, in pixels
CROPS = range(64, 513, 32)  # of the network, in pixels
RATE, SPEED, EVERY = 20, 2, 8  # frames per second, factor, frames from answer to answer
SHARE = 1 / 3  # of the core's time, with the most frames


def write_video(path: Path) -> None:
    """Two seconds of each class."""
    random = np.random.default_rng(0)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for name in CLASSES:
            for frame in draw(name, size=SIZE, frames=2 * RATE, rng=random):
                output.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        output.mux(stream.encode())


def write_weights(path: Path, *, causal: bool) -> None:
    """A network with the smallest frames with which it takes its share of the time."""
    network, record = load_with_record(SHIPPED)
    kept = ("model", "num_classes", "classes", "trained_frames")
    trial = path.with_name("trial.safetensors")
    meta = {key: getattr(record, key) for key in kept}
    if causal:
        plain = ffn.create_model(record.model, num_classes=record.num_classes, causal=True)
        network = ffn.convert(plain, record.trained_frames).eval()
        meta["model_args"] = {"causal": True}
    for crop in CROPS:
        meta["preprocessing"] = record.preprocessing | {"crop": crop, "resize": crop}
        save_weights(network, trial, meta, overwrite=True)
        if causal:
            step, frame = ffn.stream(network).step, torch.zeros(3, crop, crop)
            seconds = min(timeit.repeat(lambda step=step, frame=frame: step(frame), number=1))
        else:
            predictor, video = Predictor(trial), np.zeros((16, crop, crop, 3), np.uint8)
            seconds = min(predictor(video, frames=16).model_ms for _ in range(5)) / 1000
        if seconds > SHARE * (1 if causal else EVERY) / RATE / SPEED:
            break
    save_weights(network, path, meta, overwrite=True)
    print(f"{crop} px: an answer takes {1000 * seconds:.0f} ms", file=sys.stderr)


def draw_answers(folder: Path) -> None:
    """Draw frames and latency of the answers; print them by thirds, as docs/live.md has them."""
    answers = [json.loads(line) for line in (folder / "live.jsonl").read_text().splitlines()]
    time, frames, latency, skipped, dropped = (
        np.array([answer[key] for answer in answers])
        for key in ("time", "frames", "latency_ms", "skipped", "dropped")
    )
    figure, axes = plt.subplots(2, 1, figsize=(9, 4), sharex=True, layout="constrained")
    axes[0].step(time / 60, frames, linewidth=0.8, where="post")
    axes[0].set(ylabel="frames", yticks=sorted({*frames}))
    axes[1].plot(time / 60, latency, linewidth=0.5)
    axes[1].set(xlabel="minutes of the stream", ylabel="latency (ms)", ylim=(0, None))
    figure.savefig(folder / "live.png", dpi=120)
    for part in np.array_split(np.arange(len(time)), 3):
        counts = ", ".join(f"{(frames[part] == n).sum()} with {n}" for n in sorted({*frames}))
        rest = f"{np.ptp(skipped[part])} skipped, {np.ptp(dropped[part])} frames dropped"
        ends = np.percentile(latency[part], [50, 99])
        print(f"{len(part)} answers: {counts} frames; {rest}; {ends.round()} ms", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30, help="of the stream")
    parser.add_argument("--load", type=int, default=4, help="processes that compete for the core")
    parser.add_argument("--folder", type=Path, default=Path("runs/live"), help="of the files")
    parser.add_argument("--causal", action="store_true", help="each frame runs once")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    kind = "causal" if given.causal else "large"
    video, weights = given.folder / "video.mp4", given.folder / f"{kind}.safetensors"
    if not video.exists():
        write_video(video)
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if not weights.exists():
        write_weights(weights, causal=given.causal)

    seconds, processes = 60 * given.minutes, []
    busy = [sys.executable, "-c", "while True: pass"]
    begin = threading.Timer(
        seconds / SPEED / 3,
        lambda: processes.extend(subprocess.Popen(busy) for _ in range(given.load)),
    )
    end = threading.Timer(
        2 * seconds / SPEED / 3, lambda: [process.kill() for process in processes]
    )
    begin.start()
    end.start()
    try:
        words = f"--speed {SPEED} --repeat --step {EVERY / RATE} --duration {seconds} --format json"
        if given.causal:  # reads every frame
            words += f" --window {16 / RATE}"
        with (given.folder / "live.jsonl").open("w") as log, redirect_stdout(log):
            status = main(["live", str(video), "--weights", str(weights), *words.split()])
    finally:
        begin.cancel()
        end.cancel()
        for process in processes:
            process.kill()
            process.wait()
    if status == 0:
        draw_answers(given.folder)
    sys.exit(status)
