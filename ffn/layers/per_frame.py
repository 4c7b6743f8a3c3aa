"""Apply an image network to every frame and average the logits (TSN, ECCV 2016)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ffn.clips import check_clip
from ffn.layers.classifier import check_resettable, init_classifier
from ffn.layers.streaming import Average, ClipLength
from ffn.recomputation import run_restorably

HEAD_STD = 1e-3  # of a new classifier: logits start close to zero, as TSM's and TEA's reference


class PerFrame(nn.Module):
    """Apply a 2-D network to each frame and average its logits over time.

    The classifier and the features are those of a timm network, under timm's names.

    Args:
        net: maps images (N, C, H, W) to logits (N, K). Layers that mix frames read T from
            ``length`` of this module.
        causal: they read no later frames, so that the network runs streams (:func:`ffn.stream`).
    """

    def __init__(self, net: nn.Module, *, causal: bool = False) -> None:
        super().__init__()
        self.net, self.causal = net, causal
        self.length = ClipLength()
        self.average = Average(self.length)
        convs = (m.in_channels for m in net.modules() if isinstance(m, nn.Conv2d))
        self.in_channels = next(convs, None)  # of the stem, for messages

    def forward(self, clip: Tensor) -> Any:
        """Classify clips of any length.

        Args:
            clip: (B, C, T, H, W), normalized.

        Returns:
            Logits (B, K); if the network returns several tensors in a tuple, list or dict, as one
            with auxiliary classifiers in training, the average of each, in the same structure.

        Raises:
            ValueError: the clip does not have five dimensions, T is 0, T and C are swapped, or the
                network returns an object of another kind.
        """
        return tree_map(lambda x: x if x is None else self.average(x), self._run(self.net, clip))

    def forward_features(self, clip: Tensor) -> Tensor:
        """The last feature maps: those of timm's ``forward_features``, for each frame.

        Returns:
            (B, T, C, H, W); of networks with another layout, (B, T, …).
        """
        return self._run(self.net.forward_features, clip)

    def frame_features(self, features: Tensor) -> Tensor:
        """The classifier's input for each frame (B, T, C), of :meth:`forward_features`."""
        x = self.net.forward_head(features.flatten(0, 1), pre_logits=True)
        return x.unflatten(0, features.shape[:2])

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (B, K) of :meth:`forward_features`.

        Args:
            features: (B, T, …).
            pre_logits: return the classifier's input instead, averaged over the frames: (B, C).
        """
        frames = features.shape[1]

        x = self.net.forward_head(features.flatten(0, 1), pre_logits=pre_logits)  # (N, K)

        return x.unflatten(0, (-1, frames)).mean(1)  # (B, K)

    def _run(self, function: Callable[[Tensor], Any], clip: Tensor) -> Any:
        """The outputs (B, T, …) of a function for the frames (N, C, H, W) of all clips."""
        check_clip(clip, self.in_channels)
        frames = self.length.frames = clip.shape[2]

        images = rearrange(clip, "b c t h w -> (b t) c h w")
        restore = partial(setattr, self.length, "frames", frames)
        outputs = run_restorably(function, images, restore)

        def split(x: Tensor | None) -> Tensor | None:
            if x is not None and not isinstance(x, Tensor):
                name, kind = type(self.net).__name__, type(x).__name__
                remedy = "wrap it in a module whose forward returns the tensor of logits"
                raise ValueError(f"{name} returns {kind}, not logits (N, K); {remedy}")
            return x if x is None else x.unflatten(0, (-1, frames))

        return tree_map(split, outputs)

    @property
    def num_classes(self) -> int:
        """K; 0 without a classifier."""
        return self.net.num_classes

    @property
    def num_features(self) -> int:
        """Channels of :meth:`forward_features`."""
        return self.net.num_features

    @property
    def head_hidden_size(self) -> int:
        """Channels of the classifier's input, ``pre_logits``."""
        return getattr(self.net, "head_hidden_size", self.net.num_features)

    def get_classifier(self) -> nn.Module:
        """The layer that returns logits."""
        return self.net.get_classifier()

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a new one; 0 classes: none, and ``pre_logits`` are returned.

        Raises:
            ValueError: the classifier is private to each frame count, or altered.
        """
        check_resettable(self.get_classifier())
        like = next(self.net.parameters())
        self.net.reset_classifier(num_classes)
        init_classifier(self.get_classifier().to(like), HEAD_STD)
