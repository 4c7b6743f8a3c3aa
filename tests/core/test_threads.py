"""Threads with different frame counts in one network, and pickles."""

from __future__ import annotations

import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from core_models import TINY, Case, every_case
from torch import Tensor

COUNTS = (2, 4, 8)


def test_two_threads_in_one_network() -> None:
    """Each waits in the middle of it for the other; the oracle is a single thread."""
    model = TINY.flexible(COUNTS, interpolate=True)
    for frames in ((2, 8), (4, 4), (3, 8), (6, 7), (5, 5)):
        clips = [TINY.clip(n) for n in frames]
        expected = [model(clip) for clip in clips]
        barrier = threading.Barrier(2)

        def meet(*_: object, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(timeout=30)

        hook = model.model.net.layer2.register_forward_pre_hook(meet)
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(model, clips))
        hook.remove()

        for result, alone in zip(results, expected, strict=True):
            assert torch.equal(result, alone)


def test_active_count_belongs_to_the_thread() -> None:
    model = TINY.flexible(COUNTS)
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
