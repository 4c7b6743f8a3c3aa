"""Benchmark of a clip store at an address: range requests against whole shards.

The address is a web server on this machine with the latency and the bandwidth of a distant one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from ffn.benchmarks.formats import generated_videos
from ffn.benchmarks.range_server import RangeServer
from ffn.benchmarks.timing import Comparison, Variant, compare, interleave
from ffn.data import ClipStore, Record, pack, segment_center

DISTINCT = 4  # generated videos; the others are copies
SHORT_SIDE = 256  # pixels
STRIDES = (2, 3, 4, 8)  # distances of frames
CPU = torch.device("cpu")


def compare_access(
    *,
    clips: Sequence[int],
    frames: int,
    videos: int,
    video_frames: int,
    latency: float,
    bandwidth: float,
    rounds: int,
) -> Iterator[Comparison]:
    """Compare the times to open a remote store and to read a few clips of it.

    The cache is empty before each call. The title of a comparison says how many requests a call
    needs, and how many bytes come.

    Args:
        clips: numbers of clips that are read, each measured.
        frames: of a clip, evenly spaced.
        videos: number of generated videos in the store.
        video_frames: of each.
        latency: seconds before each answer.
        bandwidth: bytes per second.
        rounds: timed runs of each variant.

    Raises:
        ValueError: more clips than videos, or more frames than a video has.
    """
    if max(clips) > videos:
        raise ValueError(f"--clips is {max(clips)}; the store has {videos} videos (--videos)")
    least = STRIDES[-1] * (frames - 1) + 1
    if video_frames < least:
        raise ValueError(
            f"--video-frames is {video_frames}; {frames} frames (--frames) at a distance of "
            f"{STRIDES[-1]} need {least}"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = _packed(folder, videos, video_frames)
        link = f"{latency * 1e3:g} ms per request, {bandwidth * 8e-6:g} Mbit/s"
        with RangeServer(
            folder / "store", latency=latency, bandwidth=bandwidth
        ).running() as server:
            for number in clips:
                chosen = [records[i] for i in segment_center(videos, number)]
                yield _compare_ways(server, folder, chosen, frames, link, rounds)
            for stride in STRIDES:
                indices = range(0, stride * frames, stride)[:frames]
                yield _compare_gaps(server, folder, records[0], indices, link, rounds)


def _packed(folder: Path, videos: int, frames: int) -> list[Record]:
    """Pack generated videos into `folder/store`."""
    originals = generated_videos(
        folder / "videos",
        number=min(videos, DISTINCT),
        short_side=SHORT_SIDE,
        frames=frames,
        gop=12,
    ).records
    records = []
    for number in range(videos):
        path = folder / f"{number}.mp4"
        path.hardlink_to(originals[number % DISTINCT].path)
        records.append(Record(str(path), 0))
    pack(records, folder / "store", short_side=SHORT_SIDE)
    return records


def _compare_ways(
    server: RangeServer,
    folder: Path,
    records: Sequence[Record],
    frames: int,
    link: str,
    rounds: int,
) -> Comparison:
    def read(access: str) -> Callable[[], None]:
        def run() -> None:
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                store = ClipStore(server.address, access=access, cache=cache)
                for record in records:
                    video = store.open_record(record)
                    video.read(segment_center(len(video), frames))

        return run

    calls = {"ranges": read("ranges"), "whole shards": read("shards")}
    title = f"{len(records)} clips of {frames} frames, {link}"
    return _measured(server, title, calls, len(records), "whole shards", rounds)


def _compare_gaps(
    server: RangeServer,
    folder: Path,
    record: Record,
    indices: Sequence[int],
    link: str,
    rounds: int,
) -> Comparison:
    """Compare a request per frame with one request for all frames and the gaps between them."""

    def read(gap: int) -> Callable[[], None]:
        store = ClipStore(server.address, access="ranges", cache=folder / "cache")
        video = store.open_record(record)
        video._shards.gap = gap
        video.between(0, 1)  # reads the header
        return lambda: video.read(indices)

    calls = {"one request": read(1 << 30), "a request per frame": read(0)}
    title = f"{len(indices)} frames at a distance of {indices.step}, {link}"
    return _measured(server, title, calls, 1, "a request per frame", rounds)


def _measured(
    server: RangeServer,
    title: str,
    calls: dict[str, Callable[[], None]],
    clips: int,
    reference: str,
    rounds: int,
) -> Comparison:
    """Time the calls; requests and bytes stand in the title."""
    traffic = []
    for name, call in calls.items():
        server.forget()
        call()
        traffic.append(f"{name} {len(server.requests)}, {server.sent / 2**20:.3g}")
    seconds = interleave(calls, rounds=rounds, device=CPU, warmup=0)
    variants = [Variant(name, clips, seconds[name]) for name in calls]
    pairs = [(name, reference) for name in calls if name != reference]
    return compare(f"{title}; requests, MiB: {'; '.join(traffic)}", variants, pairs)
