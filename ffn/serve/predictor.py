"""Predict labels of videos with the preprocessing stored in the weights."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from numbers import Integral

import torch

from ffn.data import Normalise, Preprocessing
from ffn.data.decoding import PATTERN, check_pattern
from ffn.export import Networks
from ffn.labels import label_kind
from ffn.serve.choose_frames import Always, Budget, ByDuration, counts_of
from ffn.serve.clips import Choice, Clip, ClipReader, Windows
from ffn.serve.inputs import Input
from ffn.serve.prediction import Prediction
from ffn.zoo import home, load_with_record


class Predictor:
    """A trained network with its preprocessing and class names.

    Several threads may call one predictor. Each sub-network is fused (:func:`ffn.fuse`) when a
    video needs it for the first time, which makes that call slower.

    Args:
        name_or_path: Name or path of weights, see :func:`ffn.load`.
        device: Device of the network.
        precision: "fp32", "bf16", "fp16", or "auto". On a CPU, "auto" is bf16 if a measurement
            shows that it is faster. The measurement takes a few forward passes; a file in
            ``FFN_HOME`` keeps it for later processes. On CUDA, "auto" is bf16 or else fp16.
        fuse: Run fused networks; False for the network as it was trained.
        compile: Use ``torch.compile``; the first video of every length takes long.
        pattern: File names in a folder of frames, e.g. ``img_{:05d}.jpg``. Default: that of the
            training (``data.frame_pattern`` in the record), or else ``{:05d}.jpg``.

    Raises:
        ValueError: if the name or the precision is unknown, or the record has no valid
            preprocessing.
        FileNotFoundError: if the file does not exist.
        WeightsError: if the weights cannot be loaded.
        TypeError: if `name_or_path` is neither a name nor a path.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike[str],
        *,
        device: str | torch.device = "cpu",
        precision: str = "auto",
        fuse: bool = True,
        compile: bool = False,
        pattern: str | None = None,
    ) -> None:
        import av  # noqa: F401  not in the first call, whose time is measured

        if not isinstance(name_or_path, (str, os.PathLike)):
            raise TypeError(
                f"name_or_path is a {type(name_or_path).__name__}; expected a name of the zoo "
                "(ffn.list_weights()) or the path of a .pt or .safetensors file. Save a network "
                "with ffn.zoo.save_weights"
            )
        self.device = torch.device(device)
        self.model, self.record = load_with_record(name_or_path, device=self.device)
        self.preprocessing = Preprocessing.from_dict(self.record.preprocessing)
        data = (self.record.config or {}).get("data", {})
        self.pattern = pattern or data.get("frame_pattern") or PATTERN
        check_pattern(self.pattern)
        # Converted foreign checkpoints have no class names.
        self.classes = self.record.classes or tuple(
            f"class {i}" for i in range(self.record.num_classes)
        )
        self._networks = Networks(
            self.model, precision=precision, fused=fuse, compiled=compile, cache=home()
        )
        self._normalise = Normalise(self.preprocessing)

    @property
    def default_frames(self) -> int:
        """The largest number of frames that the network was trained with.

        Raises:
            ValueError: if the record of a plain network does not contain it.
        """
        return max(self._trained_frames())

    @property
    def fused(self) -> bool:
        """Whether fused networks run."""
        return self._networks.fused

    def resolve_precision(self, frames: int) -> str:
        """The precision of the network; "auto" is resolved by a clip of so many frames."""
        if self._networks.precision == "auto":
            size = self.preprocessing.crop
            with torch.inference_mode():
                self._networks(torch.zeros(1, 3, frames, size, size, device=self.device))
        return self._networks.precision

    @property
    def counts(self) -> list[int]:
        """The numbers of frames that ``frames="auto"`` and budgets choose from, ascending.

        Of a network that was trained at ranges of counts, or that interpolates, these are all
        counts from the smallest to the largest; else the trained ones.
        """
        return counts_of(self.model, self._trained_frames())

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
                or a list of these.
            frames: Number of input frames, at least 1; default :attr:`default_frames`. "auto": the
                largest of :attr:`counts` that does not repeat frames of the video and takes at most
                8 per second, or else the smallest.
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
            ValueError: if `frames` or `batch_size` is below 1, there are several of `frames` and
                budgets, or the smallest count exceeds the budget.
            TypeError: if a video is none of the above, or `frames` no integer.
        """
        _check_batch_size(batch_size)
        reader = self.reader(frames, budget_ms=budget_ms, budget_gmacs=budget_gmacs)
        if not isinstance(video, (list, tuple)):
            return self.predict([reader.read(video)])[0]
        return list(self.predict_all(map(reader.read, video), batch_size))

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
        _check_batch_size(batch_size)
        windows = Windows(seconds, step, fps)
        reader = self.reader(frames, budget_ms=budget_ms, budget_gmacs=budget_gmacs)
        return self.predict_all(reader.read_windows(video, windows), batch_size)

    def reader(
        self,
        frames: int | str | None = None,
        *,
        budget_ms: float | None = None,
        budget_gmacs: float | None = None,
    ) -> ClipReader:
        """What reads the clips of videos, also in other processes; checks its arguments.

        Args:
            frames, budget_ms, budget_gmacs: As for a call.

        Raises:
            ValueError, TypeError: as a call.
        """
        choose = self._choice(frames, budget_ms, budget_gmacs)
        return ClipReader(self.preprocessing, self.pattern, choose)

    def _choice(
        self, frames: int | str | None, budget_ms: float | None, budget_gmacs: float | None
    ) -> Choice:
        budgets = {"budget_ms": budget_ms, "budget_gmacs": budget_gmacs}
        given = {k: v for k, v in {"frames": frames, **budgets}.items() if v is not None}
        if len(given) > 1:
            shown = " and ".join(f"{key}={value!r}" for key, value in given.items())
            raise ValueError(f"got {shown}; give one of frames, budget_ms and budget_gmacs")
        for name, value in budgets.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < math.inf):
                raise ValueError(f"{name} is {value!r}; expected a number above 0")
        if budget_ms is not None:
            return Always(*self._budget.within_ms(budget_ms))
        if budget_gmacs is not None:
            return Always(*self._budget.within_gmacs(budget_gmacs))
        if isinstance(frames, str) and frames == "auto":
            return ByDuration(tuple(self.counts))
        if frames is None:
            return Always(self.default_frames, "the largest trained count")
        if not isinstance(frames, Integral) or isinstance(frames, bool):
            raise TypeError(f'frames is {frames!r}; expected an integer of 1 or more, or "auto"')
        if frames < 1:
            raise ValueError(f"frames is {frames}; expected an integer of 1 or more")
        return Always(int(frames), "")

    @cached_property
    def _budget(self) -> Budget:
        return Budget(
            self.model,
            self.counts,
            self._trained_frames(),
            size=self.preprocessing.crop,
            run=self._networks,
            describe=lambda: self._networks.describe(self.device),
            device=self.device,
            cache=home(),
        )

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
        started = time.perf_counter()
        with torch.inference_mode():
            batch = torch.stack([clip.pixels for clip in clips])  # (B, C, T, H, W)
            logits = self._networks(self._normalise(batch.to(self.device)))
            labels = label_kind(self.record.multi_label)
            # .cpu() synchronises with the device
            probabilities = [labels.probabilities(row).cpu() for row in logits]
        finished = time.perf_counter()
        frames = batch.shape[2]
        return [
            Prediction(
                path=clip.name,
                probabilities=each,
                classes=self.classes,
                frames=frames,
                active=self._networks.select(frames),
                network=str(self._networks),
                decode_ms=clip.decode_ms,
                model_ms=1000 * (finished - started) / len(clips),
                multi_label=self.record.multi_label,
                why=clip.why,
                indices=clip.indices,
                start=clip.start,
                end=clip.end,
            )
            for clip, each in zip(clips, probabilities, strict=True)
        ]

    def _trained_frames(self) -> list[int]:
        """The trained counts.

        Raises:
            ValueError: if the record of a plain network does not contain them.
        """
        trained = self.record.trained_frames
        if trained is None and self.record.config:
            trained = self.record.config["task"]["frames"]
        if not trained:
            raise ValueError(
                f"{self.record.name} is a plain network with an unknown number of trained frames; "
                "give frames=, or --frames"
            )
        return list(trained)


def _check_batch_size(batch_size: int) -> None:
    if type(batch_size) is not int or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; expected an integer of 1 or more")
