"""The network that an exported file contains: frame transform, sub-network, probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.labels import label_kind
from ffn.version import __version__

# Index of frame i of T in a video of n frames, as Python expressions; the rules of ffn.data.
SAMPLING = {
    "segment": "int(n / T / 2 + n / T * i)",
    "interval": "round((n - 1) / T * i) + int((n - 1) / T / 2)",
    "dense": "int(n / T / 2 + n / T * i) if n < 64 else (n - 64) // 2 + 64 // T * i",
}


class FrameTransform(nn.Module):
    """The test transform of ``ffn.data`` (resize, center crop, normalize), for any frame size.

    torchvision resizes uint8 frames along the rows, rounds, resizes along the columns, and rounds.
    Here each pass is a resize of float frames, and a few values differ by 1 of 255. Where
    torchvision resizes float frames itself (0.21 on AVX-512), a fifth of the values do.

    Arguments are those of :class:`ffn.data.Preprocessing`.
    """

    def __init__(
        self, *, resize: int, crop: int, mean: Sequence[float], std: Sequence[float], color: str
    ) -> None:
        super().__init__()
        self.resize, self.crop, self.color = resize, crop, color
        for name, values in (("mean", mean), ("std", std)):
            constant = torch.tensor(values, dtype=torch.float32).view(3, 1, 1, 1)
            self.register_buffer(name, constant, persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """uint8 RGB frames (B, T, H, W, 3) to the clip (B, 3, T, crop, crop)."""
        batch, count, height, width = frames.shape[:4]
        # Arithmetic in place of a minimum: with torch 2.6, torch.export would fix which side it is.
        is_wide = 1 - 1 // (1 + width // height)  # 1 if width >= height, else 0
        short = height * is_wide + width * (1 - is_wide)
        new_height, new_width = self.resize * height // short, self.resize * width // short

        x = frames.flatten(0, 1).permute(0, 3, 1, 2).float()  # (N, C, H, W)
        x = _round(_resize(x, (height, new_width)))
        x = _resize(x, (new_height, new_width))
        x = x.narrow(2, self._margin(new_height), self.crop)
        x = _round(x.narrow(3, self._margin(new_width), self.crop))

        x = x.unflatten(0, (batch, count)).transpose(1, 2)  # (B, C, T, H, W)
        x = x.flip(1) if self.color == "bgr" else x
        return (x / 255 - self.mean) / self.std

    def _margin(self, side: int) -> int:
        """First row or column of the crop: half of the rest, rounded to even as torchvision's."""
        rest = side - self.crop
        return rest // 2 + (rest % 2) * (rest // 2 % 2)


class DeployedNetwork(nn.Module):
    """A plain network as a program runs it, with what a format needs to know about it.

    Args:
        network: maps clips (B, C, T, H, W) to logits (B, K).
        shape: of the network's clip, (C, T, H, W).
        record: of the weights, as ``WeightRecord.to_dict`` returns it; may be empty.
        active: trained count of the sub-network; None for a plain network.
        preprocess: programs pass frames, and not normalized clips.
        probabilities: return the softmax of the logits, or their sigmoid with several labels per
            video (``multi_label`` in the record).
        any_frames: T may vary in the file.

    Attributes:
        metadata: what the file states about itself, plain values.

    Raises:
        ValueError: ``preprocess`` without the preprocessing of the weights.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        shape: tuple[int, int, int, int],
        record: Mapping[str, Any] | None = None,
        active: int | None = None,
        preprocess: bool = False,
        probabilities: bool = False,
        any_frames: bool = False,
    ) -> None:
        super().__init__()
        record = record or {}
        self.network, self.shape = network, shape
        if preprocess and "preprocessing" not in record:
            raise ValueError(
                "preprocess needs the preprocessing of the weights; load them with ffn.load, or "
                'pass record={"preprocessing": ffn.data.Preprocessing(...).to_dict()}'
            )
        given = record.get("preprocessing", {}).items()
        pixels = {key: value for key, value in given if key not in ("sampling", "span")}
        self.transform = FrameTransform(**pixels) if preprocess else None
        self.probabilities, self.any_frames = probabilities, any_frames
        self.fold_norms = True  # a format may fold them into the weights
        self.least_frames = 1  # of a clip, if T may vary
        self.input_name = "frames" if preprocess else "clip"
        self.output_name = "probabilities" if probabilities else "logits"
        self.input_names, self.output_names = [self.input_name], [self.output_name]
        self._labels = label_kind(record.get("multi_label", False))
        self.metadata = self._describe(record, active)

    def forward(self, x: Tensor) -> Tensor:
        """Classify clips, or frames (B, T, H, W, 3) if there is a transform."""
        if self.transform is not None:
            x = self.transform(x).to(self.dtype)
        logits = self.network(x)
        return self._labels.probabilities(logits) if self.probabilities else logits

    @property
    def dtype(self) -> torch.dtype:
        """Of a normalized clip, and of the logits."""
        return dtype_of(self.network)

    @property
    def input_shape(self) -> list[int | str]:
        """The shape of the input; a letter is a dimension that may vary."""
        channels, frames, height, width = self.shape
        count = "T" if self.any_frames else frames
        if self.transform is None:
            return ["B", channels, count, height, width]
        return ["B", count, "H", "W", channels]

    @property
    def dynamic_shapes(self) -> tuple[dict[int, Any]]:
        """The dimensions that may vary, as ``torch.export.export`` takes them."""
        vary = [i for i, size in enumerate(self.input_shape) if isinstance(size, str)]
        return (dict.fromkeys(vary, torch.export.Dim.DYNAMIC),)

    def example(self, batch: int, *, frames: int | None = None, seed: int = 0) -> Tensor:
        """Random input: normalized noise, or uint8 frames of a size that depends on the seed.

        The frames of seed 0 have the size to which others are resized.
        """
        generator = torch.Generator().manual_seed(seed)
        channels, trained, height, width = self.shape
        frames = frames or trained
        if self.transform is None:
            size = (batch, channels, frames, height, width)
            return torch.randn(size, generator=generator).to(self.dtype)
        side = self.transform.resize
        size = [side, side] if seed == 0 else [side + 3 * seed, side * 4 // 3 + 5 * seed]
        size = size[::-1] if seed % 2 else size
        shape = (batch, frames, *size, channels)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    def _describe(self, record: Mapping[str, Any], active: int | None) -> dict[str, Any]:
        described: dict[str, Any] = {"ffn": __version__}
        copied = "model", "classes", "multi_label", "labels", "licence", "source", "trained_frames"
        described |= {key: record[key] for key in copied if key in record}
        if weights := {key: record[key] for key in ("name", "sha256") if key in record}:
            described["weights"] = weights
        described |= {"frames": self.shape[1], "any_frames": self.any_frames}
        if active:
            described["sub_network"] = active

        preprocessing, inside = dict(record.get("preprocessing", {})), self.transform is not None
        if rule := preprocessing.pop("sampling", None):
            described["sampling"] = {"rule": rule, "index": SAMPLING[rule]}
        if span := preprocessing.pop("span", 0):  # n in the rule
            described["sampling"]["span"] = span
        if preprocessing:
            described["preprocessing"] = {**preprocessing, "inside": inside}
        dtype = str(self.dtype).removeprefix("torch.")
        described["input"] = {
            "name": self.input_name,
            "shape": self.input_shape,
            "orientation": "as displayed: the rotation that a video file states is applied",
            "dtype": "uint8" if inside else dtype,
            "content": "uint8 RGB frames" if inside else "normalized clips",
        }
        described["output"] = {"name": self.output_name, "dtype": dtype}
        return described


def dtype_of(network: nn.Module) -> torch.dtype:
    """The precision of a network: of a fused one in bf16, some layers stay in fp32."""
    dtypes = [p.dtype for p in network.parameters()]
    return min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)


def _resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, size, mode="bilinear", antialias=True, align_corners=False)


def _round(x: Tensor) -> Tensor:
    """Values of uint8, rounded half up; 1e-3 covers the different float errors of runtimes."""
    return (x + 0.501).floor().clamp(0, 255)
