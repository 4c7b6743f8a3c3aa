"""What the benchmark of a remote store compares, and the requests that it counts."""

from __future__ import annotations

import pytest

from ffn.benchmarks.remote_store import compare_access

pytest.importorskip("aiohttp")

SMALL = {"videos": 3, "video_frames": 20, "latency": 0.001, "bandwidth": 1e9, "rounds": 2}


def test_requests_and_ratios() -> None:
    first, both, *gaps = compare_access(clips=[1, 2], frames=2, **SMALL)
    start = "2 frames, 1 ms per request, 8000 Mbit/s; requests, MiB: "
    assert first.title.startswith(f"1 clips of {start}")
    # store.json and the index; then a header and two distant frames, or the only shard.
    assert "ranges 5, " in first.title
    assert "whole shards 3, " in first.title
    assert "ranges 8, " in both.title
    assert "whole shards 3, " in both.title
    assert [variant.items for variant in both.variants] == [2, 2]
    assert [(r.name, r.over) for r in both.ratios] == [("ranges", "whole shards")]
    assert [gap.title.split(",")[0] for gap in gaps] == [
        f"2 frames at a distance of {n}" for n in (2, 3, 4, 8)
    ]
    for gap in gaps:
        assert "one request 1, " in gap.title
        assert "a request per frame 2, " in gap.title


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="--clips is 4; the store has 3 videos"):
        next(compare_access(clips=[4], frames=2, **SMALL))
    with pytest.raises(ValueError, match=r"4 frames .* at a distance of 8 need 25"):
        next(compare_access(clips=[1], frames=4, **SMALL))
