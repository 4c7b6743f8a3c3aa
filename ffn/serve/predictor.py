"""Predict labels of videos with the preprocessing stored in the weights."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

import torch
from torch import Tensor

from ffn.data import EvalTransform, Normalise, Preprocessing, sample_views
from ffn.data.decoding import PATTERN, Video, check_pattern
from ffn.export import Networks
from ffn.labels import label_kind
from ffn.serve.choose_frames import Budget, counts_of, frames_for_duration
from ffn.serve.inputs import Input, open_input
from ffn.zoo import home, load_with_record


@dataclass(frozen=True)
class Prediction:
    """The prediction of a network for one video.

    Attributes:
        path: The video; for a video in memory, what it is, e.g. "40 frames in memory".
        probabilities: Class probabilities (K,), on the CPU. They sum to 1 if a video has one label.
        classes: K class names.
        frames: Number of input frames.
        active: Trained count of the sub-network that was used; None for a plain network.
        network: How the network ran, e.g. "fused, bf16".
        decode_ms: Time to decode and transform the clip, in milliseconds.
        model_ms: Time of the forward pass, the copy to the device included, in milliseconds; of
            clips that ran as one batch, each has the same share.
        multi_label: Whether a video has any number of the classes, with independent probabilities.
        why: Why this number of frames, e.g. "within 30 ms: 24.1 ms, measured"; empty if it was
            given.
    """

    path: str
    probabilities: Tensor
    classes: tuple[str, ...]
    frames: int
    active: int | None
    network: str
    decode_ms: float
    model_ms: float
    multi_label: bool = False
    why: str = ""

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most probable labels with their probabilities, in descending order."""
        values, indices = self.probabilities.topk(min(k, len(self.classes)))
        pairs = zip(indices.tolist(), values.tolist(), strict=True)
        return [(self.classes[i], probability) for i, probability in pairs]


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
        self._transform = EvalTransform(self.preprocessing)
        self._normalise = Normalise(self.preprocessing)

    @property
    def default_frames(self) -> int:
        """The largest number of frames that the network was trained with.

        Raises:
            ValueError: if the record of a plain network does not contain it.
        """
        return max(self._trained_frames())

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
            video: Path of a video file or of a folder of frames; the bytes of a video file; uint8
                frames (T, H, W, 3) or (T, 3, H, W) as an array or a tensor, from which the clip is
                sampled as from a file; or a list of these.
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
        if type(batch_size) is not int or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; expected an integer of 1 or more")
        choose = self._chooser(frames, budget_ms, budget_gmacs)
        if not isinstance(video, (list, tuple)):
            return self._predict([self._read(video, choose)])[0]
        predictions: list[Prediction] = []
        batch: list[_Clip] = []
        for one in video:
            clip = self._read(one, choose)
            if batch and (len(batch) == batch_size or clip.pixels.shape != batch[0].pixels.shape):
                predictions += self._predict(batch)
                batch = []
            batch.append(clip)
        return predictions + (self._predict(batch) if batch else [])

    def check_choice(
        self,
        frames: int | str | None = None,
        *,
        budget_ms: float | None = None,
        budget_gmacs: float | None = None,
    ) -> None:
        """Check the arguments that choose the number of frames, before any video is read.

        Raises:
            ValueError, TypeError: as a call does.
        """
        self._chooser(frames, budget_ms, budget_gmacs)

    def _chooser(
        self, frames: int | str | None, budget_ms: float | None, budget_gmacs: float | None
    ) -> Callable[[Video], tuple[int, str]]:
        """A function that gives the number of frames for a video, and why."""
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
            found = self._budget.within_ms(budget_ms)
        elif budget_gmacs is not None:
            found = self._budget.within_gmacs(budget_gmacs)
        elif frames == "auto":
            counts = self.counts
            return lambda video: frames_for_duration(video, counts)
        elif frames is None:
            found = self.default_frames, "the largest trained count"
        elif isinstance(frames, Integral) and not isinstance(frames, bool):
            found = int(frames), ""
        else:
            raise TypeError(f'frames is {frames!r}; expected an integer of 1 or more, or "auto"')
        return lambda video: found

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

    def _read(self, given: Input, choose: Callable[[Video], tuple[int, str]]) -> _Clip:
        """Sample, decode and transform the clip of a video."""
        started = time.perf_counter()
        with open_input(given, pattern=self.pattern) as (name, video):
            frames, why = choose(video)
            rule = self.preprocessing.sampling
            indices = sample_views(len(video), (frames,), rule=rule)[frames]
            x = self._transform(video.read(indices))  # (T, C, H, W)
        return _Clip(name, x.transpose(0, 1), why, 1000 * (time.perf_counter() - started))

    def _predict(self, clips: Sequence[_Clip]) -> list[Prediction]:
        """Predictions of clips of one shape, as one batch."""
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


@dataclass(frozen=True)
class _Clip:
    """A clip that was read: its video's name, pixels (C, T, H, W) uint8, why so many frames."""

    name: str
    pixels: Tensor
    why: str
    decode_ms: float
