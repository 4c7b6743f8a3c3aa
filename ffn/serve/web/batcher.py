"""Run clips that arrive one by one in batches, in a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ffn.serve.clips import Clip
from ffn.serve.prediction import Prediction


class Batcher:
    """Collects the clips that wait, and runs those of one shape together.

    A batch holds what waits when the previous one ends, so that a single clip never waits for
    others. Clips with other numbers of frames are never in a batch together.

    Args:
        run: predicts clips of one shape, in their order.
        batch_size: largest number of clips of a batch.
    """

    def __init__(
        self, run: Callable[[Sequence[Clip]], Sequence[Prediction]], batch_size: int
    ) -> None:
        self._run, self._batch_size = run, batch_size
        self._waiting: deque[tuple[Clip, Future[Prediction]]] = deque()
        self._changed, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="ffn-batches", daemon=True)
        self._thread.start()

    def submit(self, clip: Clip) -> Future[Prediction]:
        """Queue a clip; the future has its prediction, or its error.

        Raises:
            RuntimeError: the batcher is closed.
        """
        future: Future[Prediction] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._waiting.append((clip, future))
            self._changed.notify()
        return future

    @property
    def alive(self) -> bool:
        """Whether clips are still run."""
        return self._thread.is_alive() and not self._closed

    def close(self) -> None:
        """Cancel the clips that wait, and end the thread after the batch that runs."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        for _, future in self._waiting:
            future.cancel()

    def _work(self) -> None:
        while batch := self._next():
            clips, futures = zip(*batch, strict=True)
            for future, outcome in zip(futures, self._outcomes(clips), strict=True):
                if isinstance(outcome, Exception):  # the waiting thread raises it
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _outcomes(self, clips: Sequence[Clip]) -> list[Prediction | Exception]:
        """The prediction or the error of each clip: one that fails does not fail the others."""
        try:
            return list(self._run(clips))
        except Exception as error:
            if len(clips) == 1:
                return [error]
            return [self._outcomes([clip])[0] for clip in clips]

    def _next(self) -> list[tuple[Clip, Future[Prediction]]]:
        """The next batch: the clip that waits longest, and others of its shape; [] at the end.

        Clips whose thread has given up are left out.
        """
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return []
                shape = self._waiting[0][0].pixels.shape
                fits = [item for item in self._waiting if item[0].pixels.shape == shape]
                batch = fits[: self._batch_size]
                taken = {id(future) for _, future in batch}
                self._waiting = deque(i for i in self._waiting if id(i[1]) not in taken)
                batch = [item for item in batch if item[1].set_running_or_notify_cancel()]
                if batch:
                    return batch
