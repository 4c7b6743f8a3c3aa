"""The DataLoader of a VideoDataset: batches, workers, and errors about lost workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from ffn.data.clip_sampler import ClipSampler
from ffn.data.dataset import VideoDataset
from ffn.data.decoding import VideoError
from ffn.data.store import StoreError
from ffn.data.workers import end_with_parent, start_forkserver

GRACE = 5.0  # seconds after which a timeout of torch has had no effect


def make_loader(
    dataset: VideoDataset,
    *,
    batch_size: int,
    workers: int = 0,
    train: bool = False,
    group_videos: bool = False,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    repeats: int = 1,
    timeout: float = 0.0,
    frame_counts: Callable[[int, int], Mapping[int, int]] | None = None,
) -> DataLoader:
    """Build a loader; call `loader.sampler.set_epoch(epoch)` before each epoch.

    The loader has its own random generator and does not change torch's global random state. Its
    workers persist over epochs.

    Args:
        dataset: The samples.
        batch_size: Samples per batch and rank.
        workers: Number of worker processes; 0 loads in the main process.
        train: Whether to shuffle, with the same number of full batches on every rank. Otherwise
            samples are in order, and each is loaded once.
        group_videos: Whether the parts of one file follow each other; training only.
        seed: Seed of the order.
        rank: Rank of this process.
        world_size: Number of ranks.
        repeats: See `ClipSampler`; training only.
        timeout: Seconds to wait for a batch of the workers; 0 for no limit.
        frame_counts: See `ClipSampler`; training only.

    Returns:
        A loader of batches, see `collate_train` and `collate_eval`.
    """
    sampler = ClipSampler(
        len(dataset),
        shuffle=train,
        groups=[record.path for record in dataset.records] if group_videos else None,
        seed=seed,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        repeats=repeats,
        frame_counts=frame_counts,
    )
    return TimedLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        collate_fn=collate_train if train else collate_eval,
        generator=torch.Generator().manual_seed(seed),
        pin_memory=torch.cuda.is_available(),
        num_workers=workers,
        timeout=timeout if workers else 0,
        persistent_workers=workers > 0,
        multiprocessing_context=worker_start_method() if workers else None,
        worker_init_fn=_init_worker,
    )


class TimedLoader(DataLoader):
    """A loader whose timeout holds in every wait for a worker.

    torch's does not hold while tensors come from a worker that is stopped, as by a lost file
    system: that worker is killed, which is an error in the waiting process.
    """

    is_late = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = super().__iter__()
        while True:
            timer = threading.Timer(self.timeout + GRACE, self._end, [batches])
            if self.timeout:
                timer.start()
            try:
                batch = next(batches)
            except StopIteration:
                return
            except Exception as error:
                if not self.is_late:
                    raise
                raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds") from error
            finally:
                timer.cancel()
            yield batch

    def _end(self, batches: Any) -> None:
        self.is_late = True
        for worker in batches._workers:
            worker.kill()


def collate_eval(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack samples; an unreadable video stays in the batch as zeros with `ok` False.

    Args:
        samples: Items of `VideoDataset`.

    Returns:
        `clips`: for each view uint8 (B, C, T, H, W), or (B * V, C, T, H, W) with V clips and crops
        per video, those of the first video first; `label`: (B,) int64, or (B, K) float32 with ones
        for the classes of several labels; `index`: (B,) int64; `ok`: (B,) bool; `skipped`: the
        errors of the unreadable videos.
    """
    return {
        "clips": {
            view: torch.stack([s["clips"][view] for s in samples]).flatten(0, -5)
            for view in samples[0]["clips"]
        },
        "label": torch.stack([torch.as_tensor(s["label"]) for s in samples]),
        "index": torch.tensor([s["index"] for s in samples]),
        "ok": torch.tensor([s["ok"] for s in samples]),
        "skipped": [s["error"] for s in samples if not s["ok"]],
    }


def collate_train(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack the samples of readable videos.

    Args:
        samples: Items of `VideoDataset`.

    Returns:
        As `collate_eval`, with B reduced by the number of skipped videos; `clips` is empty if no
        video is readable.
    """
    readable = [s for s in samples if s["ok"]]
    skipped = [s["error"] for s in samples if not s["ok"]]
    if readable:
        return collate_eval(readable) | {"skipped": skipped}
    index = torch.empty(0, dtype=torch.int64)
    return {"clips": {}, "label": index, "index": index, "ok": index.bool(), "skipped": skipped}


def worker_start_method() -> str:
    """Start method of loader workers: `fork` on Linux, unless CUDA is initialized; else `spawn`.

    A process that uses CUDA cannot be forked, so Linux then uses `forkserver`. On macOS, system
    libraries are not safe to fork.
    """
    if sys.platform != "linux":
        return "spawn"
    if not torch.cuda.is_initialized():
        return "fork"
    start_forkserver()
    return "forkserver"


class LoaderError(RuntimeError):
    """A worker of a loader timed out or exited."""


@contextmanager
def watching() -> Iterator[None]:
    """Convert the errors of torch about loader workers into errors that name the remedy.

    torch raises the error about a worker that exits in a signal handler of the main process,
    anywhere in the code inside the context.

    Raises:
        LoaderError: if a worker exited, or a batch exceeded the timeout.
        VideoError: if a video is unreadable; its message is that of the worker.
        StoreError: if a store cannot be downloaded, as well.
    """
    try:
        yield
    except (VideoError, StoreError) as error:
        # torch puts the worker's traceback before the message.
        kind = type(error)
        name = f"\n{kind.__module__}.{kind.__qualname__}: "
        if name not in str(error):
            raise
        raise kind(str(error).rpartition(name)[2].rstrip("\n")) from error
    except Exception as error:
        cause = _worker_failure(error)
        if cause is None:
            raise
        raise LoaderError(
            f"a loader worker failed ({cause}); find the video with ffn check_data, see whether "
            "memory was exhausted, or increase data.timeout"
        ) from error


def _worker_failure(error: BaseException | None) -> str | None:
    """The cause by which torch reports a failed worker, or None.

    Torch raises it anywhere, also where the code around it then raises another error. A connection
    of multiprocessing breaks if the worker exits while it sends a batch.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and str(error).startswith("DataLoader "):
            return str(error).splitlines()[0].removeprefix("DataLoader ").strip(" .")
        places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        is_lost = isinstance(error, (ConnectionResetError, EOFError))
        if is_lost and any("multiprocessing" in place for place in places):
            return str(error) or "connection lost"
        error = error.__cause__ or error.__context__
    return None


def _init_worker(worker: int) -> None:
    """Set up a worker process: signal handlers and process group.

    A forked worker inherits the signal handlers of the training process, which would ignore the
    SIGTERM that ends it. SIGINT (Ctrl-C) goes to the whole process group; the training process
    handles it and still needs the workers to finish its step.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    end_with_parent()
