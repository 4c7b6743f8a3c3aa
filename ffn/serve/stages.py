"""Early exit on videos: decode and predict stage by stage (`ffn.evaluation.early_exit`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor

from ffn.data import EvalTransform, Preprocessing, sample_views
from ffn.data.decoding import Video
from ffn.evaluation.early_exit import EarlyExit
from ffn.serve.clips import Clip, duration_of
from ffn.serve.inputs import Input, open_input

Run = Callable[[Sequence[Clip]], tuple[Tensor, float]]
"""Logits (B, K) on the CPU of clips of one shape, and the milliseconds of each."""


class StageClips:
    """The clips of an open video at several numbers of frames; no frame is decoded twice.

    A clip has the frames that `ClipReader` reads for its number of frames. A stage decodes those
    of its frames that no stage before it has. All stages are decoded at once if the video is a file
    with fewer keyframes than the first stage has frames: the first stage then decodes nearly all
    of the file, and the next one would again.

    Args:
        name: of the video.
        video: open.
        stages: numbers of frames, ascending.
        preprocessing: of the network.
    """

    def __init__(
        self, name: str, video: Video, stages: Sequence[int], preprocessing: Preprocessing
    ) -> None:
        self.name = name
        self._video, self._transform = video, EvalTransform(preprocessing)
        self._indices = sample_views(len(video), stages, rule=preprocessing.sampling)
        self._seconds = duration_of(video)
        timeline = getattr(video, "timeline", None)
        self._at_once = timeline is not None and len(timeline.keyframe_times) < stages[0]
        self._frames: dict[int, Tensor] = {}  # by index, (C, 1, H, W)

    def read(self, frames: int) -> Clip:
        """The clip of a stage; ``decode_ms`` is the time that it took now.

        Raises:
            VideoError: if a frame cannot be decoded.
        """
        started = time.perf_counter()
        indices = self._indices[frames]
        if not self._frames and self._at_once:
            self._decode({i for stage in self._indices.values() for i in stage})
        self._decode({*indices} - {*self._frames})
        pixels = torch.cat([self._frames[index] for index in indices], dim=1)
        spent = 1000 * (time.perf_counter() - started)
        return Clip(self.name, pixels, "", tuple(indices), spent, self._seconds)

    def _decode(self, indices: set[int]) -> None:
        if indices:
            ordered = sorted(indices)
            pixels = self._transform(self._video.read(ordered)).transpose(0, 1)
            self._frames |= zip(ordered, pixels.split(1, dim=1), strict=True)


def run_early_exit(
    early_exit: EarlyExit,
    videos: Sequence[Input],
    run: Run,
    preprocessing: Preprocessing,
    pattern: str,
) -> list[tuple[Clip, Tensor, float]]:
    """Answer videos together: those that go on form the batch of the next stage.

    Args:
        early_exit: stages and thresholds.
        videos: at least one.
        run: the network.
        preprocessing: of the network.
        pattern: file names in a folder of frames.

    Returns:
        Per video the clip of the stage that answered, with the stages in ``why`` and the time of
        all of them in ``decode_ms``; the probabilities (K,), float32; and the milliseconds of all
        its forward passes.

    Raises:
        VideoError, TypeError, ValueError: as `open_input`.
    """
    with ExitStack() as stack:
        runs = []
        for given in videos:
            started = time.perf_counter()
            name, video = stack.enter_context(open_input(given, pattern=pattern))
            clips = StageClips(name, video, early_exit.stages, preprocessing)
            runs.append(_Run(early_exit, clips, 1000 * (time.perf_counter() - started)))
        pending = runs
        for stage in early_exit.stages:
            clips = [one.read(stage) for one in pending]
            logits, model_ms = run(clips)
            for one, row in zip(pending, logits, strict=True):
                one.add(row, model_ms)
            pending = [one for one in pending if not one.stopped]
            if not pending:
                break
    return [one.result() for one in runs]


class _Run:
    """A video and the stages that have run."""

    def __init__(self, early_exit: EarlyExit, clips: StageClips, opened_ms: float) -> None:
        self._early_exit, self._clips = early_exit, clips
        self._decode_ms, self._model_ms = opened_ms, 0.0
        self._stages: list[str] = []
        self.stopped = False

    def read(self, stage: int) -> Clip:
        self._clip = self._clips.read(stage)
        self._decode_ms += self._clip.decode_ms
        return self._clip

    def add(self, logits: Tensor, model_ms: float) -> None:
        """Take the logits (K,) of the stage that was read."""
        number = len(self._stages)
        self._model_ms += model_ms
        self._probabilities = logits[None].double().softmax(-1)
        self.stopped = bool(self._early_exit.stops(number, self._probabilities))
        text = f"{self._early_exit.stages[number]} frames"
        if number < len(self._early_exit.thresholds):
            sign = ">=" if self.stopped else "<"
            confidence = float(self._probabilities.amax())
            text += f" {confidence:.3f} {sign} {self._early_exit.thresholds[number]:.3f}"
        self._stages.append(text)

    def result(self) -> tuple[Clip, Tensor, float]:
        why = f"early exit: {', '.join(self._stages)}"
        clip = replace(self._clip, why=why, decode_ms=self._decode_ms)
        return clip, self._probabilities[0].float(), self._model_ms
