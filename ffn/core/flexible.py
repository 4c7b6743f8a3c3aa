"""``FrameFlexible``: runs the sub-network nearest to the number of frames of a clip."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, compiler, nn

from ffn.core.private import PrivateModules, WeightAlteration
from ffn.core.selection import frame_ranges, nearest


class FrameFlexible(nn.Module):
    """A network with shared weights and private modules per trained frame count.

    :func:`ffn.convert` builds it. State-dict keys are those of the wrapped network, with the count
    in those of private modules (``layer1.0.bn1.16.weight``). ``load_state_dict`` also accepts the
    state dict of the plain network: it sets all private copies, and alterations keep their values.

    ``forward`` changes the active sub-network. For threads with several frame counts at once, use
    :func:`ffn.extract` per count.

    Args:
        model: a network that contains :class:`PrivateModules`.
        trained_frames, frame_dim: see :func:`ffn.convert`.
        report: of the conversion; printable.
    """

    def __init__(
        self,
        model: nn.Module,
        trained_frames: Iterable[int],
        *,
        frame_dim: int = 2,
        report: object = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.ranges = frame_ranges(trained_frames)
        self.trained_frames = tuple(self.ranges)
        self.frame_dim = frame_dim
        self.report = report
        self.active = self.trained_frames[-1]
        self._private = tuple(m for m in model.modules() if isinstance(m, PrivateModules))
        self.activate(self.active)

    def forward(self, clip: Tensor, active: int | None = None) -> Tensor:
        """Run the sub-network nearest to the clip's number of frames, or the given one.

        Args:
            clip: (B, C, T, H, W), any T >= 1, normalised. The logits (B, K) are returned.
            active: a trained frame count to run instead of the nearest.

        Raises:
            ValueError: wrong number of dimensions, no frames, or ``active`` is not trained.
        """
        if clip.ndim != 5:
            raise ValueError(
                f"clip has {clip.ndim} dims {tuple(clip.shape)}; expected (B, C, T, H, W). "
                "Several views? Call the task instead."
            )
        closest = nearest(clip.shape[self.frame_dim], self.ranges)
        count = closest if active is None else active
        self.activate(count)

        logits = self.model(clip)
        if isinstance(logits, Tensor) and logits.requires_grad and not compiler.is_compiling():
            # Activation checkpointing runs layers again in the backward, after other forwards.
            logits.register_hook(lambda _: self.activate(count))
        return logits

    def activate(self, count: int) -> None:
        """Activate the sub-network of a trained count; raise ValueError for another count."""
        if count not in self.trained_frames:
            raise ValueError(
                f"no sub-network for {count} frames; trained are {self.trained_frames}. "
                "Leave `active` out to run the nearest."
            )
        self.active = count
        for module in self._private:
            module.active = count

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The wrapped network's state dict, without a prefix for the wrapper."""
        return self.model.state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        inner = f"{prefix}model."
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[inner + key[len(prefix) :]] = state_dict.pop(key)
        self._spread_plain(state_dict, inner)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _spread_plain(self, state_dict: dict, prefix: str) -> None:
        """Set every private copy from the entries of a plain network."""
        named = self.model.named_modules(prefix=prefix.removesuffix("."))
        private = {f"{name}.": m for name, m in named if isinstance(m, PrivateModules)}
        owned = tuple(f"{name}{count}." for name in private for count in self.trained_frames)
        if any(key.startswith(owned) for key in state_dict):
            return  # entries of a converted network, which must be complete
        for name, module in private.items():
            keys = [key for key in state_dict if key.startswith(name)]
            plain = {key[len(name) :]: state_dict.pop(key) for key in keys}
            for count, copy in module.items():
                has_none = isinstance(copy, WeightAlteration) and not plain
                new = {"weight": copy.weight.detach().clone()} if has_none else plain
                state_dict.update({f"{name}{count}.{key}": new[key] for key in new})
