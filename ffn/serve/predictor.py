"""From a video file to labels and probabilities, fed as the weights' record says."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ffn.core import nearest
from ffn.data import EvalTransform, Normalise, Preprocessing, open_video, sample_views
from ffn.zoo import load_with_record


@dataclass(frozen=True)
class Prediction:
    """What a network says about one video.

    Attributes:
        path: the video.
        probabilities: (K,), on the CPU.
        classes: K names.
        frames: number of frames that the network saw.
        active: trained count of the sub-network that answered; None for a plain network.
        decode_ms: time to decode and to prepare the clip, in milliseconds.
        model_ms: time of the network, its input's way to the device included, in milliseconds.
    """

    path: str
    probabilities: Tensor
    classes: tuple[str, ...]
    frames: int
    active: int | None
    decode_ms: float
    model_ms: float

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most probable labels with their probabilities, most probable first."""
        values, places = self.probabilities.topk(min(k, len(self.classes)))
        return [(self.classes[i], p) for i, p in zip(places.tolist(), values.tolist(), strict=True)]


class Predictor:
    """A trained network with its preprocessing and class names.

    Args:
        name_or_path: weights, as :func:`ffn.load` takes them.
        device: where the network runs.

    Raises:
        ValueError: no such weights, or a record without usable preprocessing.
        FileNotFoundError: no such file.
        WeightsError: weights that cannot be used.
    """

    def __init__(
        self, name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
    ) -> None:
        import av  # noqa: F401  here, so that the first video's time is its own

        self.device = torch.device(device)
        self.model, self.record = load_with_record(name_or_path, device=self.device)
        self.preprocessing = Preprocessing.from_dict(self.record.preprocessing)
        # Foreign checkpoints hold no names.
        self.classes = self.record.classes or tuple(
            f"class {i}" for i in range(self.record.num_classes)
        )
        self._transform = EvalTransform(self.preprocessing)
        self._normalise = Normalise(self.preprocessing)

    @property
    def default_frames(self) -> int:
        """The largest number of frames that the network was trained at.

        Raises:
            ValueError: the record of a plain network does not tell.
        """
        trained = self.record.trained_frames
        if trained is None and self.record.config:
            trained = self.record.config["task"]["frames"]
        if not trained:
            raise ValueError(
                f"{self.record.name} is a plain network, its trained number of frames is not "
                "known; pass frames"
            )
        return max(trained)

    def __call__(self, path: str | os.PathLike[str], frames: int | None = None) -> Prediction:
        """Label one video.

        Args:
            path: a video file, or a folder of frames.
            frames: number of frames to look at, at least 1; by default :attr:`default_frames`.

        Raises:
            VideoError: the video cannot be read.
            ValueError: a number of frames below 1.
        """
        frames = self.default_frames if frames is None else frames
        started = time.perf_counter()
        clip = self._clip(os.fspath(path), frames)
        decoded = time.perf_counter()
        with torch.inference_mode():
            logits = self.model(self._normalise(clip.to(self.device)))[0]
            probabilities = logits.float().softmax(0).cpu()  # waits for the device
        finished = time.perf_counter()

        trained = self.record.trained_frames
        return Prediction(
            path=os.fspath(path),
            probabilities=probabilities,
            classes=self.classes,
            frames=frames,
            active=None if trained is None else nearest(frames, trained),
            decode_ms=1000 * (decoded - started),
            model_ms=1000 * (finished - decoded),
        )

    def _clip(self, path: str, frames: int) -> Tensor:
        """The uint8 clip (1, C, T, H, W) of a video."""
        video = open_video(path)
        rule = self.preprocessing.sampling
        indices = sample_views(len(video), (frames,), rule=rule)[frames]
        x = self._transform(video.read(indices))  # (T, C, H, W)
        return x.transpose(0, 1)[None]  # (1, C, T, H, W)
