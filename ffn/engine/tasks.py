"""Tasks: a model with its loss, as a module whose forward takes a batch.

``forward(batch)`` returns ``{"loss": ..., "loss/<name>": ..., "logits/<frames>": ...}``. A task
also yields its losses one by one (``losses``), for a backward pass after each view. The train step
does not depend on the kind of task. Tasks are registered by name with :func:`register_task`, each
with its own options; your own package adds one in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ffn.core import TrainedFrames, frame_ranges
from ffn.registry import Registry

TASKS: Registry[type[Task]] = Registry("task")


def register_task(name: str) -> Callable[[type[Task]], type[Task]]:
    """Decorator that registers a subclass of :class:`Task` for ``task.name`` in a config.

    Raises:
        ValueError: another class has the name, the class is no task, or its ``Options`` are no
            dataclass derived from :class:`TaskOptions` with a default for every option.
    """

    def register(task: type[Task]) -> type[Task]:
        if not issubclass(task, Task):
            raise ValueError(f"task {name!r}: {task.__name__} does not derive from ffn's Task")
        _check_options(name, task.Options)
        return TASKS.register(name)(task)

    return register


def _check_options(task: str, options: type) -> None:
    shown = f"task {task!r}: the options {options.__name__}"
    if not issubclass(options, TaskOptions):
        raise ValueError(f"{shown} do not derive from TaskOptions")
    known = {field.name: field for field in fields(options)}
    named = [k for k, v in inspect.get_annotations(options).items() if "ClassVar" not in str(v)]
    missing = [key for key in named if key not in known]
    if missing:
        raise ValueError(f"{shown} have {missing[0]}, which is no option; decorate with @dataclass")
    for key, field_ in known.items():
        if field_.default is MISSING and field_.default_factory is MISSING:
            raise ValueError(f"{shown} have no default for {key}; use option(default, meaning)")


def option(default: Any, meaning: str) -> Any:
    """Dataclass field of an option: its default, and a line for ``--help``."""
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy(default), metadata={"help": meaning})
    return field(default=default, metadata={"help": meaning})


@dataclass
class TaskOptions:
    """Options that every task has. A custom task derives its options from this class."""

    name: str = option("flexible", "registered task")
    frames: list[int] = option([4, 8, 16], "trained frame counts")
    ranges: list[list[int]] = option(
        [], "first and last count of each of frames, drawn per step; []: the counts themselves"
    )

    @property
    def trained_frames(self) -> TrainedFrames:
        """The counts in ascending order, with their ranges if there are any."""
        counts = tuple(sorted(self.frames))
        if not self.ranges:
            return counts
        return dict(zip(counts, map(tuple, self.ranges), strict=True))


class Task(nn.Module):
    """A model with its loss.

    Subclasses define ``losses``, and ``Options`` if they have options. Only the parameters of the
    model are trained, and only its parameters and buffers are saved. Tensors of a task, e.g.
    class weights, must be buffers: they move to the device of the model.

    Args:
        model: takes a clip (B, C, T, H, W), returns logits (B, K).

    Attributes:
        Options: dataclass of the task's options, derived from :class:`TaskOptions`.
    """

    Options: type[TaskOptions] = TaskOptions

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @classmethod
    def from_options(cls, model: nn.Module, options: Any) -> Task:
        """Build the task from its options.

        Args:
            model: converted with :meth:`conversion`.
            options: an instance of ``Options``.
        """
        return cls(model)

    @classmethod
    def conversion(cls, options: Any) -> dict[str, Any] | None:
        """Arguments of :func:`ffn.convert` for the model of this task; None keeps it plain.

        Checkpoints store ``trained_frames``, ``private`` and ``alter``, from which
        :func:`ffn.load` rebuilds the network. Other arguments, and functions, are refused.
        """
        return None

    @classmethod
    def views(cls, options: Any) -> dict[int, dict[int, float]]:
        """The clips of a batch: for each view its possible numbers of frames, with probabilities.

        A view has the same number of frames in all samples of a step. By default, each of
        ``options.frames`` is a view with this number of frames, or with one from its range.
        """
        return {
            count: dict.fromkeys(range(low, high + 1), 1 / (high - low + 1))
            for count, (low, high) in frame_ranges(options.trained_frames).items()
        }

    @classmethod
    def problems(cls, options: Any) -> list[str]:
        """Messages about options that contradict each other; empty if there are none."""
        return []

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield (name, weighted loss, frames, logits) for each view of a batch.

        Names and frames are the same in every step and on every process.
        """
        raise NotImplementedError

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Run all views in one pass.

        Args:
            batch: ``{"clips": {view: (B, C, T, H, W)}, "label": (B,)}`` with the views of
                :meth:`views`; a label may also be (B, K) probabilities, as
                :class:`ffn.engine.mixup.BatchMix` returns.

        Returns:
            The total loss, each view's loss, and each view's logits (B, K).
        """
        outputs: dict[str, Tensor] = {}
        total: Tensor | float = 0.0
        for name, loss, frames, logits in self.losses(batch):
            outputs[f"loss/{name}"] = loss.detach()
            outputs[f"logits/{frames}"] = logits.detach()
            total = total + loss
        return {"loss": total, **outputs}


@register_task("plain")
class PlainTask(Task):
    """Separated training (ST): cross-entropy at one frame count.

    Args:
        model: takes a clip, returns logits.
        frames: the view of the batch to train on.
    """

    def __init__(self, model: nn.Module, frames: int) -> None:
        super().__init__(model)
        self.frames = frames

    @classmethod
    def from_options(cls, model: nn.Module, options: TaskOptions) -> PlainTask:
        """Build the task at the one count in ``options.frames``."""
        return cls(model, options.frames[0])

    @classmethod
    def problems(cls, options: TaskOptions) -> list[str]:
        """Report any number of frame counts other than one."""
        if len(options.frames) == 1:
            return []
        return [
            f"task.frames is {options.frames}; task.name=plain trains exactly one frame count, "
            "e.g. task.frames=[8]"
        ]

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the cross-entropy of the one view."""
        logits = self.model(batch["clips"][self.frames])
        yield f"ce_{self.frames}", F.cross_entropy(logits, batch["label"]), self.frames, logits


class SmallViews(Enum):
    """Target of the views below the largest."""

    distill = "distill"
    label = "label"
    mixed = "mixed"


class Private(Enum):
    """Modules that each trained count owns."""

    norms = "norms"
    none = "none"
    all = "all"


@dataclass
class FlexibleOptions(TaskOptions):
    """Options of :class:`FlexibleTask`."""

    private: Private = option(
        Private.norms, "private modules of each count: norms (paper), none, all"
    )
    alteration: bool = option(True, "weight alteration per count at the backbone's sites")
    small_views: SmallViews = option(
        SmallViews.distill, "target of smaller views: KL to the largest, the label, or the mean"
    )
    distill_weight: float = option(1.0, "weight of each smaller view's loss (lambda), >= 0")


@register_task("flexible")
class FlexibleTask(Task):
    """Frame-flexible training (FFN, CVPR 2023, §3.2, eq. 3 to 5).

    ``CE(p_H, y) + λ Σ KL(sg(p_H) ‖ p_v)`` over the smaller views v: the largest view learns the
    label, the others learn the largest one's distribution and do not use the label.

    Args:
        model: a frame-flexible network.
        trained_frames: the views; the largest is the teacher.
        distill_weight: λ.
        small_views: "distill" is the paper. "label" gives the smaller views the cross-entropy
            instead (the paper's ablation), "mixed" the mean of both.

    Raises:
        ValueError: an unknown ``small_views``.
    """

    Options = FlexibleOptions

    def __init__(
        self,
        model: nn.Module,
        trained_frames: tuple[int, ...],
        *,
        distill_weight: float = 1.0,
        small_views: str = "distill",
    ) -> None:
        super().__init__(model)
        allowed = [member.value for member in SmallViews]
        if small_views not in allowed:
            raise ValueError(f'small_views is "{small_views}"; allowed: {", ".join(allowed)}')
        self.trained_frames = tuple(sorted(trained_frames))
        self.distill_weight = distill_weight
        self.small_views = small_views

    @classmethod
    def from_options(cls, model: nn.Module, options: FlexibleOptions) -> FlexibleTask:
        """Build the task for all counts in ``options.frames``."""
        return cls(
            model,
            tuple(options.frames),
            distill_weight=options.distill_weight,
            small_views=options.small_views.value,
        )

    @classmethod
    def conversion(cls, options: FlexibleOptions) -> dict[str, Any]:
        """Private modules and alterations for all counts in ``options.frames``."""
        return {
            "trained_frames": options.trained_frames,
            "private": options.private.value,
            "alter": "sites" if options.alteration else "none",
        }

    @classmethod
    def problems(cls, options: FlexibleOptions) -> list[str]:
        """Report a negative weight."""
        if options.distill_weight >= 0:
            return []
        return [f"task.distill_weight is {options.distill_weight}; it must be at least 0"]

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the largest view's cross-entropy, then the loss of each smaller view."""
        *small, largest = self.trained_frames
        label = batch["label"]
        logits = self.model(batch["clips"][largest], active=largest)
        teacher = logits.detach().float().log_softmax(-1)
        yield f"ce_{largest}", F.cross_entropy(logits, label), largest, logits

        for frames in reversed(small):
            logits = self.model(batch["clips"][frames], active=frames)
            name, loss = self.small_view_loss(logits, teacher, label)
            yield f"{name}_{frames}", self.distill_weight * loss, frames, logits

    def small_view_loss(self, logits: Tensor, teacher: Tensor, label: Tensor) -> tuple[str, Tensor]:
        """Name and loss of a view below the largest.

        Args:
            logits: of the view (B, K).
            teacher: log-probabilities of the largest view (B, K), without gradient.
            label: (B,), or (B, K) probabilities.
        """
        if self.small_views == "label":
            return "ce", F.cross_entropy(logits, label)
        loss = distillation(logits, teacher)
        if self.small_views == "mixed":
            return "mixed", (loss + F.cross_entropy(logits, label)) / 2
        return "kl", loss


def distillation(logits: Tensor, teacher: Tensor) -> Tensor:
    """``KL(teacher ‖ student)``, mean over the batch, without a temperature (FFN, §3.2).

    Args:
        logits: of the student (B, K).
        teacher: log-probabilities (B, K), without gradient.
    """
    student = logits.float().log_softmax(-1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)
