"""Predict labels of a video file with the preprocessing stored in the weights."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from ffn.data import EvalTransform, Normalise, Preprocessing, open_video, sample_views
from ffn.data.decoding import PATTERN, check_pattern
from ffn.export import Networks
from ffn.labels import label_kind
from ffn.zoo import home, load_with_record


@dataclass(frozen=True)
class Prediction:
    """The prediction of a network for one video.

    Attributes:
        path: The video.
        probabilities: Class probabilities (K,), on the CPU. They sum to 1 if a video has one label.
        classes: K class names.
        frames: Number of input frames.
        active: Trained count of the sub-network that was used; None for a plain network.
        network: How the network ran, e.g. "fused, bf16".
        decode_ms: Time to decode and transform the clip, in milliseconds.
        model_ms: Time of the forward pass, the copy to the device included, in milliseconds.
        multi_label: Whether a video has any number of the classes, with independent probabilities.
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
        trained = self.record.trained_frames
        if trained is None and self.record.config:
            trained = self.record.config["task"]["frames"]
        if not trained:
            raise ValueError(
                f"{self.record.name} is a plain network with an unknown number of trained frames; "
                "give frames=, or --frames"
            )
        return max(trained)

    def __call__(self, path: str | os.PathLike[str], frames: int | None = None) -> Prediction:
        """Predict the label of one video.

        Args:
            path: Video file or folder of frames.
            frames: Number of input frames, at least 1; default :attr:`default_frames`.

        Raises:
            VideoError: if the video cannot be read.
            ValueError: if `frames` is below 1.
            TypeError: if `path` is not a path, or `frames` no integer.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(
                f"path is a {type(path).__name__}; expected the path of one video file or folder "
                "of frames. Run predictor.model on a clip in memory: (B, C, T, H, W), normalised"
            )
        frames = self.default_frames if frames is None else frames
        if not isinstance(frames, Integral):
            raise TypeError(f"frames is {frames!r}; expected an integer of 1 or more")
        started = time.perf_counter()
        clip = self._clip(os.fspath(path), frames)
        decoded = time.perf_counter()
        with torch.inference_mode():
            logits = self._networks(self._normalise(clip.to(self.device)))[0]
            labels = label_kind(self.record.multi_label)
            probabilities = labels.probabilities(logits).cpu()  # synchronises with the device
        finished = time.perf_counter()

        return Prediction(
            path=os.fspath(path),
            probabilities=probabilities,
            classes=self.classes,
            frames=frames,
            active=self._networks.select(frames),
            network=str(self._networks),
            decode_ms=1000 * (decoded - started),
            model_ms=1000 * (finished - decoded),
            multi_label=self.record.multi_label,
        )

    def _clip(self, path: str, frames: int) -> Tensor:
        """The uint8 clip (1, C, T, H, W) of a video."""
        video = open_video(path, pattern=self.pattern)
        rule = self.preprocessing.sampling
        indices = sample_views(len(video), (frames,), rule=rule)[frames]
        x = self._transform(video.read(indices))  # (T, C, H, W)
        return x.transpose(0, 1)[None]  # (1, C, T, H, W)
