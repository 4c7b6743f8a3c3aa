"""Threads with different frame counts in one network, and pickles."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from core_models import Case, every_case, randomize
from torch import Tensor, nn

from ffn.core import FrameFlexible, convert

COUNTS = (2, 4, 8)


class Meet(nn.Module):
    """Identity; waits until two threads are inside it, so that both run the network at once."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier: threading.Barrier | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.barrier is not None:
            self.barrier.wait(timeout=30)
        return x


class PooledClip(nn.Module):
    """A norm, a place to meet, a norm, and the mean over the clip."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm3d(3), Meet(), nn.BatchNorm3d(3))

    def forward(self, clip: Tensor) -> Tensor:
        return self.layers(clip).mean((2, 3, 4))


def pooled() -> FrameFlexible:
    """A converted network; all private copies differ."""
    return randomize(convert(PooledClip(), COUNTS, alter="none", interpolate=True)).eval()


def run_together(model: FrameFlexible, functions: list[Callable[[], Tensor]]) -> list[Tensor]:
    """Results of two functions that meet inside the network."""
    (meet,) = (m for m in model.modules() if isinstance(m, Meet))
    meet.barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        results = [future.result() for future in [pool.submit(f) for f in functions]]
    meet.barrier = None
    return results


def test_two_threads_in_one_network() -> None:
    """Trained counts and interpolated ones; the oracle is a single thread."""
    model = pooled()
    for frames in ((2, 8), (4, 4), (3, 8), (6, 7), (5, 5)):
        clips = [torch.randn(2, 3, n, 4, 4) for n in frames]
        expected = [model(clip) for clip in clips]

        results = run_together(model, [lambda c=clip: model(c) for clip in clips])

        for result, alone in zip(results, expected, strict=True):
            assert torch.equal(result, alone)


def test_active_count_belongs_to_the_thread() -> None:
    model = pooled()
    model.activate(2)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: model.active).result() == 8  # not set there: the largest
        pool.submit(model.activate, 4).result()
        assert pool.submit(lambda: model.active).result() == 4
    assert model.active == 2


@every_case
def test_many_threads_give_the_answers_of_one(case: Case) -> None:
    model = case.flexible(COUNTS, interpolate=True)
    frames = [1 + n % 11 for n in range(0, 48 * 7, 7)]
    clips = {n: case.clip(n, batch=1) for n in set(frames)}
    with torch.inference_mode():
        expected = {n: model(clip) for n, clip in clips.items()}

    @torch.inference_mode()
    def answer(n: int) -> tuple[Tensor, int]:
        return model(clips[n]), model.active

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(answer, frames))

    for n, (logits, active) in zip(frames, answers, strict=True):
        torch.testing.assert_close(logits, expected[n])
        assert active == model.select(n)


@every_case
def test_networks_can_be_pickled(case: Case) -> None:
    for network in (case.plain(), case.flexible(COUNTS)):
        buffer = io.BytesIO()
        torch.save(network, buffer)
        buffer.seek(0)
        copies = [pickle.loads(pickle.dumps(network)), torch.load(buffer, weights_only=False)]
        for frames in (2, 5, 8):
            clip = case.clip(frames)
            for copied in copies:
                assert torch.equal(copied(clip), network(clip))
