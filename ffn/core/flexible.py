"""The wrapper that reads a clip's frame count and runs the sub-network nearest to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ffn.core.alteration import WeightAlteration
from ffn.core.private import PrivateModules
from ffn.core.selection import check_trained_frames, nearest

if TYPE_CHECKING:
    from ffn.core.convert import ConversionReport


class FrameFlexible(nn.Module):
    """A network with shared weights and private modules per trained frame count.

    Made by :func:`ffn.convert`. State-dict keys are those of the wrapped network, with the count in
    the private ones (``layer1.0.bn1.16.weight``). ``load_state_dict`` also takes the state dict of the
    network before conversion: each private module then starts from the plain one, and the
    alterations keep their values.

    Which sub-network is active is the one thing that a forward changes. Threads that serve several
    frame counts at once take :func:`ffn.extract` per count instead.

    Args:
        model: a network that contains :class:`PrivateModules`.
        trained_frames: the frame counts they are keyed by.
        frame_dim: the dimension of the clip that holds T.
        report: what the conversion did.
    """

    def __init__(
        self,
        model: nn.Module,
        trained_frames: Iterable[int],
        *,
        frame_dim: int = 2,
        report: ConversionReport | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.trained_frames = check_trained_frames(trained_frames)
        self.frame_dim = frame_dim
        self.report = report
        self.active = self.trained_frames[-1]
        self._private = tuple(m for m in model.modules() if isinstance(m, PrivateModules))
        self.activate(self.active)

    def forward(self, clip: Tensor, active: int | None = None) -> Tensor:
        """Run the sub-network nearest to the clip's frame count, or a pinned one.

        Args:
            clip: (B, C, T, H, W), any T >= 1, normalised.
            active: a trained frame count to run instead of the nearest.

        Returns:
            Logits (B, K).

        Raises:
            ValueError: wrong rank, no frames, or ``active`` was not trained.
        """
        if clip.ndim != 5:
            raise ValueError(
                f"clip has {clip.ndim} dims {tuple(clip.shape)}; expected (B, C, T, H, W). "
                "Several views? Call the task instead."
            )
        if active is None:
            active = nearest(clip.shape[self.frame_dim], self.trained_frames)
        elif clip.shape[self.frame_dim] < 1:
            raise ValueError("the clip has 0 frames; at least 1 is needed")

        self.activate(active)

        return self.model(clip)

    def activate(self, count: int) -> None:
        """Make the sub-network of a trained count the active one.

        Raises:
            ValueError: the count was not trained.
        """
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
        """Give every private copy the entries of a network that was not converted."""
        private = {
            f"{prefix}{name}.": module
            for name, module in self.model.named_modules()
            if isinstance(module, PrivateModules)
        }
        owned = [f"{name}{count}." for name in private for count in self.trained_frames]
        if any(key.startswith(name) for key in state_dict for name in owned):
            return  # a converted network's own entries: they must be complete
        for name, module in private.items():
            plain = [key for key in state_dict if key.startswith(name)]
            for count, copy in module.items():
                entries = {f"{name}{count}.{key[len(name) :]}": state_dict[key] for key in plain}
                if isinstance(copy, WeightAlteration):  # unknown to a plain network: as they are
                    entries = {f"{name}{count}.weight": copy.weight.detach().clone()}
                state_dict.update(entries)
            for key in plain:
                del state_dict[key]

    def extra_repr(self) -> str:
        """Trained counts, for ``print(model)``."""
        return f"trained_frames={self.trained_frames}"
