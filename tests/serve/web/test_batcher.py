"""Batches of clips that arrive one by one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from ffn.serve.clips import Clip
from ffn.serve.web.batcher import Batcher


def clip(frames: int, value: int = 0) -> Clip:
    pixels = torch.full((3, frames, 2, 2), value, dtype=torch.uint8)
    return Clip(f"{frames}:{value}", pixels, "", tuple(range(frames)), 0.0)


class Recorder:
    """Answers with the names of clips; the first batch waits until `go` is set."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, clips: Sequence[Clip]) -> list[str]:
        self.batches.append([one.name for one in clips])
        self.started.set()
        assert self.go.wait(10)
        return [f"answer to {one.name}" for one in clips]


def test_clips_that_wait_run_together_if_they_have_one_shape() -> None:
    run = Recorder()
    batcher = Batcher(run, batch_size=3)
    first = batcher.submit(clip(4))
    assert run.started.wait(10)
    waiting = [clip(8, 0), clip(4, 1), clip(8, 2), clip(8, 3), clip(8, 4), clip(4, 5)]
    futures = [batcher.submit(one) for one in waiting]
    run.go.set()

    assert first.result(10) == "answer to 4:0"
    for one, future in zip(waiting, futures, strict=True):
        assert future.result(10) == f"answer to {one.name}"
    assert run.batches == [["4:0"], ["8:0", "8:2", "8:3"], ["4:1", "4:5"], ["8:4"]]
    batcher.close()


def test_a_clip_whose_thread_has_given_up_is_left_out() -> None:
    run = Recorder()
    batcher = Batcher(run, batch_size=3)
    batcher.submit(clip(4))
    assert run.started.wait(10)
    given_up, other = batcher.submit(clip(8, 1)), batcher.submit(clip(8, 2))
    alone = batcher.submit(clip(2))
    assert given_up.cancel()
    assert alone.cancel()
    run.go.set()

    assert other.result(10) == "answer to 8:2"
    assert run.batches == [["4:0"], ["8:2"]]
    batcher.close()


def test_an_error_belongs_to_its_clip() -> None:
    recorder = Recorder()

    def run(clips: Sequence[Clip]) -> list[str]:
        answers = recorder(clips)
        if any(one.name == "8:1" for one in clips):
            raise RuntimeError("no memory")
        return answers

    batcher = Batcher(run, batch_size=3)
    first = batcher.submit(clip(4))
    assert recorder.started.wait(10)
    futures = [batcher.submit(clip(8, value)) for value in range(3)]
    recorder.go.set()

    assert first.result(10) == "answer to 4:0"
    assert futures[0].result(10) == "answer to 8:0"
    with pytest.raises(RuntimeError, match="no memory"):
        futures[1].result(10)
    assert futures[2].result(10) == "answer to 8:2"
    assert recorder.batches[1:] == [["8:0", "8:1", "8:2"], ["8:0"], ["8:1"], ["8:2"]]
    assert batcher.submit(clip(4)).result(10) == "answer to 4:0"
    batcher.close()


def test_a_closed_batcher_answers_nothing() -> None:
    run = Recorder()
    batcher = Batcher(run, batch_size=1)
    first = batcher.submit(clip(4))
    assert run.started.wait(10)
    waiting = batcher.submit(clip(4))
    assert batcher.alive
    closing = threading.Thread(target=batcher.close)
    closing.start()
    run.go.set()
    closing.join(10)

    assert first.result(10) == "answer to 4:0"
    assert waiting.cancelled()
    assert not batcher.alive
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(clip(4))
