"""Predict labels of videos with the preprocessing stored in the weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ffn.core import FrameFlexible, all_trained_frames
from ffn.data import Normalize, Preprocessing
from ffn.data.decoding import PATTERN, check_pattern
from ffn.devices import check_device
from ffn.evaluation.early_exit import EarlyExit
from ffn.export import InferenceRunner
from ffn.serve.choose_frames import Always, Budget, ByDuration, check_choice
from ffn.serve.clips import Clip, ClipReader, Windows, read_together
from ffn.serve.heat_maps import HeatMap, compute_heat_map
from ffn.serve.inputs import Input
from ffn.serve.prediction import NotFiniteError, Prediction, TextPrediction
from ffn.zoo import early_exit_beside, home, load_with_record, state_sha256


class Predictor:
    """A trained network with its preprocessing and class names.

    Several threads may call one predictor. Each sub-network is fused (:func:`ffn.fuse`) when a
    video needs it for the first time, which makes that call slower.

    Args:
        name_or_path: Name or path of weights, see :func:`ffn.load`.
        device: Device of the network.
        runtime: What runs the network: "torch"; "compile" (``torch.compile``; the first video of a
            length may take a minute); "onnxruntime" or "openvino", on a CPU; "unfused", the network
            as it was trained; or "auto", the fastest that is installed. It is measured once for a
            network, a number of frames and a machine; a file in ``FFN_HOME`` keeps it.
        precision: "fp32", "bf16", "fp16", or "auto". On a CPU, "auto" is bf16 if it is
            measured to be faster, as the runtime. On CUDA, "auto" is bf16 or else fp16.
        pattern: File names in a folder of frames, e.g. ``img_{:05d}.jpg``. Default: that of the
            training (``data.frame_pattern`` in the record), or else ``{:05d}.jpg``.
        early_exit: File of ``ffn early_exit`` for these weights, for ``frames="early_exit"``;
            default: the one that is kept with the weights.

    Raises:
        ValueError: if an argument is unknown or excludes another, the record has no valid
            preprocessing, or the early exit is damaged or belongs to other weights.
        ImportError: if the runtime is not installed.
        FileNotFoundError: if a file does not exist.
        WeightsError: if the weights cannot be loaded.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike[str],
        *,
        device: str | torch.device = "cpu",
        runtime: str = "torch",
        precision: str = "auto",
        pattern: str | None = None,
        early_exit: str | os.PathLike[str] | None = None,
    ) -> None:
        import av  # noqa: F401  not in the first call, whose time is measured

        self.device = check_device(device)
        self.model, self.record = load_with_record(name_or_path, device=self.device)
        self.preprocessing = Preprocessing.from_dict(self.record.preprocessing)
        self.pattern = pattern or self.record.options("data").get("frame_pattern") or PATTERN
        check_pattern(self.pattern)
        # Converted foreign checkpoints have no class names.
        self.classes = self.record.classes or tuple(
            f"class {i}" for i in range(self.record.num_classes)
        )
        self._runner = InferenceRunner(
            self.model, runtime=runtime, precision=precision, cache=home()
        )
        self._normalize = Normalize(self.preprocessing)
        trained = self.record.trained_frames
        if trained is None:  # a plain network
            trained = self.record.options("task").get("frames") or []
        self._trained = sorted(trained if isinstance(trained, list | tuple) else [trained])
        self._source, self._early_exit_file = name_or_path, early_exit
        if early_exit is not None:
            _ = self._early_exit  # raises, if it is damaged or belongs to other weights

    @property
    def default_frames(self) -> int:
        """The largest of :attr:`trained_frames`."""
        return max(self.trained_frames)

    def resolve_precision(self, frames: int) -> str:
        """The precision of the network; "auto" is resolved by a clip of so many frames."""
        if self._runner.precision == "auto":
            self.warm_up([frames])
        return self._runner.precision

    def warm_up(self, counts: Iterable[int]) -> None:
        """Build the networks for numbers of frames, so that no video waits for it."""
        size = self.preprocessing.crop
        with torch.inference_mode():
            for count in counts:
                self._runner(torch.zeros(1, 3, count, size, size, device=self.device))

    @property
    def is_causal(self) -> bool:
        """Whether :func:`ffn.stream` runs the network frame by frame."""
        return getattr(getattr(self.model, "model", self.model), "causal", False)

    @property
    def stream_precision(self) -> str:
        """Of a stream: bf16, if that was chosen, or fp32."""
        return "bf16" if self._runner.precision == "bf16" else "fp32"

    @property
    def network(self) -> str:
        """How the network runs, e.g. "torch, bf16"; "auto" until the first video."""
        return str(self._runner)

    def latencies(self) -> dict[int, float]:
        """Milliseconds of a clip of the trained counts, the smallest and the largest of `counts`.

        They are measured once per device, network and precision; a file in ``FFN_HOME`` keeps them.
        """
        return self._budget.latencies()

    def gmacs(self, frames: int) -> float:
        """Giga multiply-accumulates of a forward pass for one clip of so many frames."""
        return self._budget.gmacs(frames)

    @property
    def trained_frames(self) -> list[int]:
        """The trained counts, ascending.

        Raises:
            ValueError: if the record of a plain network does not contain them.
        """
        if not self._trained:
            raise ValueError(
                f"{self.record.name} is a plain network with an unknown number of trained frames; "
                "give frames=, or --frames"
            )
        return self._trained

    @property
    def counts(self) -> list[int]:
        """The numbers of frames that ``frames="auto"`` and budgets choose from, ascending.

        Of a network that was trained at ranges of counts, or that interpolates, these are all
        counts from the smallest to the largest; else the trained ones.
        """
        if not isinstance(self.model, FrameFlexible):
            return self.trained_frames
        return sorted({*all_trained_frames(self.model.ranges), *self.model.counts})

    def __call__(
        self,
        video: Input | Sequence[Input],
        frames: int | str | None = None,
        *,
        budget_ms: float | None = None,
        budget_gmacs: float | None = None,
        batch_size: int = 8,
    ) -> Prediction | list[Prediction]:
        """Predict the label of one video, or of each video of a list.

        Args:
            video: Path of a video file or of a folder of frames; an address as
                ``https://host/video.mp4``; the bytes of a video file; uint8 frames (T, H, W, 3) or
                (T, 3, H, W) as an array or a tensor, from which the clip is sampled as from a file;
                a video of a clip store, from :meth:`ffn.data.ClipStore.open`; or a list of these.
            frames: Number of input frames, at least 1; default :attr:`default_frames`. "auto": the
                largest of :attr:`counts` that does not repeat frames of the video and takes at most
                8 per second, rounded up, or else the smallest. "early_exit": the stages of early
                exit, until one is confident.
            budget_ms: In place of `frames`: the largest of :attr:`counts` whose forward pass takes
                at most this time for a single clip. The times are measured once per device,
                network and precision; a file in ``FFN_HOME`` keeps them. Decoding is not included.
            budget_gmacs: In place of `frames`: the largest of :attr:`counts` of at most so many
                giga multiply-accumulates.
            batch_size: Largest number of clips in a forward pass, for lists.

        Returns:
            The prediction, or a list of them in the order of the videos.

        Raises:
            VideoError: if a video cannot be read.
            ValueError: if `frames` is below 1, there are several of `frames` and budgets, the
                smallest count exceeds the budget, or logits are NaN or infinite.
            TypeError: if a video is none of the above, or `frames` no integer.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected 1 or more")
        several = isinstance(video, (list, tuple))
        videos = video if several else [video]
        if isinstance(frames, str) and frames == "early_exit" and budget_ms is budget_gmacs is None:
            starts = range(0, len(videos), batch_size)
            chunks = [self.predict_early_exit(videos[n : n + batch_size]) for n in starts]
            found = [prediction for chunk in chunks for _, prediction in chunk]
        else:
            reader = self.reader(frames, budget_ms=budget_ms, budget_gmacs=budget_gmacs)
            found = list(self.predict_all(map(reader.read, videos), batch_size))
        return found if several else found[0]

    def windows(
        self,
        video: Input,
        seconds: float,
        *,
        step: float | None = None,
        fps: float | None = None,
        frames: int | str | None = None,
        budget_ms: float | None = None,
        budget_gmacs: float | None = None,
        batch_size: int = 8,
    ) -> Iterator[Prediction]:
        """Predict the labels of windows of a long video.

        :func:`ffn.serve.merge_windows` joins the predictions to segments with one label.

        Args:
            video: As for a call.
            seconds: Length of a window. The last window ends with the video.
            step: Seconds from the start of a window to that of the next, at most `seconds`;
                default: half of it.
            fps: Frames per second of a folder of frames or of frames in memory, which have no
                times.
            frames, budget_ms, budget_gmacs, batch_size: As for a call, for each window.

        Yields:
            The prediction of each window, with its `start` and `end`, as soon as it is known.

        Raises:
            VideoError: if the video cannot be read, or has no times and `fps` is not given.
            ValueError, TypeError: as a call, also for `seconds`, `step` and `fps`.
        """
        self.record.require_classes("a prediction in windows")
        windows = Windows(seconds, step, fps)
        reader = self.reader(frames, budget_ms=budget_ms, budget_gmacs=budget_gmacs)
        return self.predict_all(reader.read_windows(video, windows), batch_size)

    def heat_map(
        self,
        video: Input | Clip,
        frames: int | str | None = None,
        *,
        budget_ms: float | None = None,
        budget_gmacs: float | None = None,
        label: str | None = None,
        layer: str | None = None,
    ) -> HeatMap:
        """Where the network sees evidence for a class in a video, by Grad-CAM.

        Args:
            video: As for a call, or a clip that a :meth:`reader` has read.
            frames, budget_ms, budget_gmacs: As for a call; not for a clip.
            label: Name of the class; default: the most probable.
            layer: Name of the layer whose feature map is weighted, of :func:`ffn.extract`'s
                network; default: the last feature maps, those of ``forward_features``.

        Returns:
            A value for each pixel of the clip.

        Raises:
            VideoError, TypeError: as a call.
            ValueError: as a call, also for `label` and `layer`.
        """
        self.record.require_classes("a heat map")
        if not isinstance(video, Clip):
            reader = self.reader(frames, budget_ms=budget_ms, budget_gmacs=budget_gmacs)
            video = reader.read(video)
        elif (frames, budget_ms, budget_gmacs) != (None, None, None):
            raise ValueError("a clip has its frames already; leave out frames and budgets")
        more = {"classes": self.classes, "preprocessing": self.preprocessing}
        return compute_heat_map(self.model, video, label, layer, **more)

    def reader(
        self,
        frames: int | str | None = None,
        *,
        budget_ms: float | None = None,
        budget_gmacs: float | None = None,
    ) -> ClipReader:
        """What reads the clips of videos, also in other processes; arguments as for a call.

        Raises:
            ValueError, TypeError: as a call.
        """
        check_choice(frames, budget_ms, budget_gmacs)
        if frames is None:
            choose = Always(self.default_frames, "the largest trained count")
        elif isinstance(frames, str):
            choose = ByDuration(tuple(self.counts))
        else:
            choose = Always(int(frames), "")
        if budget_ms is not None:
            choose = self._budget.within_ms(budget_ms)
        elif budget_gmacs is not None:
            choose = self._budget.within_gmacs(budget_gmacs)
        return ClipReader(self.preprocessing, self.pattern, choose)

    @cached_property
    def _budget(self) -> Budget:
        counts = self.counts if self._trained else []
        size = self.preprocessing.crop
        return Budget(self.model, self._runner, size, counts, self._trained, home())

    def predict_all(self, clips: Iterable[Clip], batch_size: int = 8) -> Iterator[Prediction]:
        """Predictions of clips of any shapes, in their order; consecutive ones run in batches."""
        batch: list[Clip] = []
        for clip in clips:
            if batch and (len(batch) == batch_size or clip.pixels.shape != batch[0].pixels.shape):
                yield from self.predict(batch)
                batch = []
            batch.append(clip)
        if batch:
            yield from self.predict(batch)

    def predict(self, clips: Sequence[Clip]) -> list[Prediction]:
        """Predictions of clips of one shape that a :meth:`reader` has read, as one batch."""
        logits, model_ms = self._logits(clips)
        labels, is_text = self.record.label_kind, bool(self.record.labels)
        return [
            (TextPrediction if is_text else Prediction)(
                path=clip.name,
                probabilities=labels.probabilities(row),
                classes=self.classes,
                frames=clip.pixels.shape[1],
                active=self._runner.select(clip.pixels.shape[1]),
                network=str(self._runner),
                decode_ms=clip.decode_ms,
                model_ms=model_ms,
                multi_label=self.record.multi_label,
                why=clip.why,
                indices=clip.indices,
                start=clip.start,
                end=clip.end,
                **({"kind": labels, "times": clip.times} if is_text else {}),
            )
            for clip, row in zip(clips, logits, strict=True)
        ]

    def predict_early_exit(
        self,
        videos: Sequence[Input],
        read: Callable[[Sequence[ClipReader], Input], list[Clip]] = read_together,
    ) -> list[tuple[Clip, Prediction]]:
        """Predictions of whole videos by early exit, with the clips of the stages that answered.

        The videos of a stage run as one batch. The frames of all stages are decoded at once, by
        `read`.

        Raises:
            ValueError: if there is no early exit, or it is damaged or belongs to other weights.
            VideoError, TypeError: as a call.
        """
        stages = self._early_exit.stages
        readers = [self.reader(count) for count in stages]
        clips = [read(readers, video) for video in videos]
        spent = [0.0] * len(videos)  # milliseconds
        answers: dict[int, tuple[Clip, Prediction]] = {}
        for stage in range(len(stages)):
            pending = [n for n in range(len(videos)) if n not in answers]
            if not pending:
                break
            found = self.predict([clips[n][stage] for n in pending])
            why = f"early exit after {', '.join(map(str, stages[: stage + 1]))} frames"
            stops = self._early_exit.stops(stage, torch.stack([p.probabilities for p in found]))
            for n, prediction, stopped in zip(pending, found, stops, strict=True):
                spent[n] += prediction.model_ms
                if stopped:
                    prediction = replace(prediction, why=why, model_ms=spent[n])
                    answers[n] = clips[n][stage], prediction
        return [answers[n] for n in range(len(videos))]

    @cached_property
    def _early_exit(self) -> EarlyExit:
        path = self._early_exit_file or early_exit_beside(self._source)
        if path is None:
            raise ValueError(
                f"there is no early exit for {self._source}; fit one with ffn early_exit, "
                "and give it: Predictor(early_exit=FILE), or --early-exit FILE"
            )
        found = EarlyExit.load(Path(path))
        found.check_network(state_sha256(self.model.state_dict()), self.record.name)
        return found

    def _logits(self, clips: Sequence[Clip]) -> tuple[Tensor, float]:
        """Logits (B, K) on the CPU, and the milliseconds of each clip."""
        started = time.perf_counter()
        with torch.inference_mode():
            batch = torch.stack([clip.pixels for clip in clips])  # (B, C, T, H, W)
            batch = self._normalize(batch.to(self.device))
            built = time.perf_counter()
            self._runner.prepare(batch)
            started += time.perf_counter() - built  # building is no time of the video
            logits = self._runner(batch).cpu()  # synchronizes with the device
        for clip, row in zip(clips, logits, strict=True):
            if not row.isfinite().all():
                raise NotFiniteError(
                    f"{clip.name}: the logits at {clip.pixels.shape[1]} frames are NaN or infinite "
                    f"({self._runner}). Try precision fp32 without fusion; if they still are, the "
                    "weights are damaged"
                )
        return logits, 1000 * (time.perf_counter() - started) / len(clips)
