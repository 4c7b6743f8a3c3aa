"""``FrameFlexible``: runs the sub-network for the number of frames of a clip (paper §3.4)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from ffn.clips import check_clip_of, varies
from ffn.core.private import ActiveCount, PrivateModules, WeightAlteration
from ffn.frame_counts import frame_ranges, nearest
from ffn.recomputation import run_restorably


class FrameFlexible(nn.Module):
    """A network with shared weights and private modules per trained frame count.

    :func:`ffn.convert` builds it and describes the arguments; ``interpolate`` may be changed later.
    State-dict keys are those of the wrapped network, with the count in those of private modules
    (``layer1.0.bn1.16.weight``). ``load_state_dict`` also accepts the state dict of the plain
    network: it sets all copies, alterations stay. ``forward`` changes its thread's sub-network.
    """

    def __init__(
        self,
        model: nn.Module,
        trained_frames: Iterable[int],
        *,
        interpolate: bool = False,
        frame_dim: int = 2,
        report: object = None,
    ) -> None:
        super().__init__()
        if type(frame_dim) is not int or not -5 <= frame_dim < 5:
            raise ValueError(f"frame_dim is {frame_dim!r}; expected the dimension of T, 0 to 4")
        self.model = model
        self.ranges = frame_ranges(trained_frames)
        self.trained_frames = tuple(self.ranges)
        # Between each two ranges, the first count and the one after the last.
        self._gaps = [(a[1] + 1, b[0]) for a, b in pairwise(self.ranges.values())]
        self.interpolate, self.frame_dim, self.report = interpolate, frame_dim, report
        self.selected = ActiveCount(self.trained_frames[-1])
        for private in [m for m in model.modules() if isinstance(m, PrivateModules)]:
            private.selected = self.selected

    def forward(self, clip: Tensor, active: int | None = None, run: Callable | None = None) -> Any:
        """Run the sub-network for the T of a clip (B, C, T, H, W), or that of the count ``active``.

        Any T >= 1 is allowed. Returns the logits (B, K), or what ``run`` returns in place of the
        network. Raises ValueError for another shape, no frames, or a count without a sub-network.
        """
        check_clip_of(self.model, clip, self.frame_dim)
        frames = clip.shape[self.frame_dim]
        if varies(frames):
            remedy = "use ffn.export, or torch.export of ffn.extract(model, T)"
            raise RuntimeError(f"a graph for all numbers of frames has one sub-network; {remedy}")
        closest = nearest(frames, self.ranges) if self.training else self.select(frames)
        active = closest if active is None else active
        self.activate(active)
        return run_restorably(run or self.model, clip, partial(self.selected.set, active))

    def forward_features(self, clip: Tensor, active: int | None = None) -> Any:
        """The network's ``forward_features``, in the sub-network that ``forward`` runs."""
        return self.forward(clip, active, self.model.forward_features)

    # Of the network, by timm's names; the head is that of the active sub-network.
    forward_head = property(attrgetter("model.forward_head"), doc="Logits (B, K) of features.")
    get_classifier = property(attrgetter("model.get_classifier"), doc="The classifier.")
    reset_classifier = property(attrgetter("model.reset_classifier"), doc="Set a new classifier.")
    num_classes = property(attrgetter("model.num_classes"), doc="The number of classes K.")
    num_features = property(attrgetter("model.num_features"), doc="Channels of the feature maps.")
    head_hidden_size = property(attrgetter("model.head_hidden_size"), doc="The classifier's width.")

    active = property(attrgetter("selected.count"), doc="This thread's count; first the largest.")

    @property
    def interpolate(self) -> bool:
        """Whether counts between two ranges have interpolated sub-networks in eval mode."""
        return self._interpolate

    @interpolate.setter
    def interpolate(self, value: bool) -> None:
        private = [m for m in self.model.modules() if isinstance(m, PrivateModules)]
        own = {p for module in private for p in module.parameters()}
        if value and own.issuperset(self.model.parameters()) and any(p.ndim > 1 for p in own):
            raise ValueError(f"interpolate is {value}, but all modules are private; use False")
        self._interpolate = bool(value)

    @property
    def counts(self) -> Sequence[int]:
        """Counts with sub-networks: the trained ones and, if interpolated, those between ranges."""
        gaps = self._gaps if self.interpolate else ()
        return sorted({*self.trained_frames, *(n for gap in gaps for n in range(*gap))})

    def select(self, frames: int) -> int:
        """The count of the sub-network for a number of frames in eval mode."""
        if self.interpolate and any(first <= frames < end for first, end in self._gaps):
            return frames
        return nearest(frames, self.ranges)

    def activate(self, count: int) -> None:
        """Activate the sub-network of a count in this thread; raise ValueError if it has none."""
        if count not in self.counts:
            trained = f"trained are {self.trained_frames}; the nearest runs clips of any length"
            raise ValueError(f"no sub-network for {count} frames; {trained}")
        self.selected.count = count

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The wrapped network's state dict, without a prefix for the wrapper."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state dict of this network, or of the plain one; see the class."""
        metadata = getattr(state_dict, "_metadata", None) or {}  # versions of layers, by name
        state_dict = OrderedDict(state_dict)
        versions = {f"model.{key}".strip("."): v for key, v in metadata.items()}
        for name, module in self.named_modules(remove_duplicate=False):
            if isinstance(module, PrivateModules):  # copies have the versions of the plain layers
                inside = [k for k in versions if k == name or k.startswith(f"{name}.")]
                copies = {f"{name}.{n}{k[len(name) :]}": k for k in inside for n in module}
                versions = {new: versions[key] for new, key in copies.items()} | versions
        state_dict._metadata = versions
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        inner = f"{prefix}model."
        keys = [key for key in state_dict if key.startswith(prefix)]
        state_dict |= {inner + key[len(prefix) :]: state_dict.pop(key) for key in keys}
        self._spread_plain(state_dict, inner.removesuffix("."))
        versions, _, missing = args[:3]
        if versions:  # within another module, where torch does not find those of norms
            names = [prefix + name for name, _ in self.named_buffers(remove_duplicate=False)]
            missing += [n for n in names if n.endswith("batches_tracked") and n not in state_dict]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _spread_plain(self, state_dict: dict, prefix: str) -> None:
        """Set every private copy from clones of the entries of a plain network."""
        named = self.model.named_modules(prefix=prefix, remove_duplicate=False)
        private = {f"{name}.": m for name, m in named if isinstance(m, PrivateModules)}
        copies = [(f"{name}{n}.", one) for name, m in private.items() for n, one in m.items()]
        owned = {start + key for start, one in copies for key in one.state_dict()}
        if not owned.isdisjoint(state_dict):
            return  # entries of a converted network, which must be complete
        for name, module in private.items():
            plain = {k[len(name) :]: state_dict.pop(k) for k in [*state_dict] if k.startswith(name)}
            for count, copy in module.items():
                has_none = isinstance(copy, WeightAlteration) and not plain
                new = {"weight": copy.weight.detach()} if has_none else plain
                state_dict |= {f"{name}{count}.{key}": value.clone() for key, value in new.items()}
