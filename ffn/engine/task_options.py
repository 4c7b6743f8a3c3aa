"""A section of options, and the options of the tasks, read and checked without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ffn.frame_counts import all_trained_frames, frame_ranges
from ffn.limits import CLIP_FRAMES

Count = Annotated[int, Field(ge=1)]
NULLS = ("", "~", "null", "Null", "NULL")


class Section(BaseModel):
    """Options with types, ranges and meanings; unknown names and wrong values raise.

    The declared type decides what a text means: ``off`` is false for a flag, and a name for a name.
    """

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Null for an option that may be null, one value for a list of it, ``~`` for the home."""
        kind = cls.model_fields[info.field_name].annotation
        if isinstance(value, str):
            if type(None) in get_args(kind) and value in NULLS:
                return None
            if get_origin(kind) is list:
                return [value]
            if value.startswith("~/"):  # a shell does not replace it after "key="
                return os.path.expanduser(value)
        return value


class TaskOptions(Section):
    """Options that every task has. A custom task derives its options from this class."""

    name: str = "flexible"
    """Registered task."""
    frames: list[Count] = Field([4, 8, 16], min_length=1)
    """Trained frame counts."""
    ranges: list[list[Count]] = Field([])
    """First and last count of each of frames, drawn per step; []: frames."""

    @model_validator(mode="after")
    def _check_frames(self) -> TaskOptions:
        counts = sorted({*self.frames})
        if len(counts) < len(self.frames):
            raise ValueError(f"task.frames is {self.frames}; give different counts")
        if refusal := CLIP_FRAMES.refusal(max(chain(counts, *self.ranges))):
            raise ValueError(f"task.frames and task.ranges have {refusal}")
        try:
            frame_ranges(self.trained_frames)
        except ValueError as error:
            raise ValueError(
                f"task.ranges is {self.ranges} for task.frames {counts}; give the first and the "
                "last count of a range around each of them, without overlap, e.g. "
                f"[[2, 5], [6, 11], [12, 20]] for [4, 8, 16] ({error})"
            ) from error
        return self

    @property
    def trained_frames(self) -> Iterable[int]:
        """The counts in ascending order, with their ranges if there are any."""
        counts = tuple(sorted(self.frames))
        if not self.ranges:
            return counts
        return dict(zip(counts, map(tuple, self.ranges), strict=True))


class ConvertedOptions(TaskOptions):
    """Options of tasks of frame-flexible networks."""

    private: str = "norms"
    """Private modules of each count: norms (the paper), none, all, or names, as norms,head."""
    alteration: bool = True
    """Weight alteration per count at the backbone's sites."""
    draws: list[list[Count]] = Field([])
    """First and last count of each view, drawn per step; []: one view per count in frames."""
    interpolate: bool = False
    """In tests, interpolate private norms and alterations between counts or ranges."""

    @model_validator(mode="after")
    def _check_draws(self) -> ConvertedOptions:
        if self.interpolate and self.private == "all":
            raise ValueError(
                "task.interpolate=true needs shared weights; task.private is all. Use "
                "task.private=norms"
            )
        try:
            drawn = all_trained_frames({high: (low, high) for low, high in self.draws})
        except ValueError:
            drawn = ()
        if self.draws and not (self.ranges and drawn == all_trained_frames(self.trained_frames)):
            raise ValueError(
                f"task.draws is {self.draws}; give the first and the last count of each view, "
                "without overlap, which together are the counts of task.ranges, "
                f"{self.ranges}"
            )
        return self


class FlexibleOptions(ConvertedOptions):
    """Options of :class:`FlexibleTask`."""

    small_views: Literal["distill", "label", "mixed"] = "distill"
    """Target of smaller views: KL to the largest, the label, or the mean."""
    distill_weight: float = Field(1.0, ge=0)
    """Weight of each smaller view's loss (lambda)."""


class ContrastiveOptions(ConvertedOptions):
    """Options of :class:`ContrastiveTask`."""

    temperature: float = Field(0.1, gt=0)
    """Temperature of the similarities (tau)."""

    @model_validator(mode="after")
    def _check_views(self) -> ContrastiveOptions:
        if min(len(self.draws or self.frames), len(self.frames)) < 2:
            raise ValueError("task.name=contrastive compares views; give two or more task.frames")
        return self


class CtcOptions(ConvertedOptions):
    """Options of :class:`CtcTask`."""

    frames: list[Count] = Field([19, 38, 75], min_length=1)
    """Trained frame counts: rates of one span of time."""
    head: Literal["gru", "conv"] = "gru"
    """Layers over time: two bidirectional GRUs, or convolutions."""
    hidden: int = Field(256, ge=1)
    """Channels of a direction of the GRUs; half of those of the convolutions."""
    upsample: int = Field(1, ge=1)
    """Logits per frame: a text needs one per token."""


class ProbeOptions(FlexibleOptions):
    """Options of :class:`ProbeTask`."""

    width: int = Field(256, ge=64, multiple_of=64)
    """Channels of the probe."""
    depth: int = Field(1, ge=0)
    """Blocks of attention before the attention of the query."""
    grid: int = Field(2, ge=1)
    """Rows and columns of cells over which features are averaged."""
    variants: int = Field(4, ge=1)
    """Epochs with new frames and crops, which later epochs repeat."""


class PlainOptions(TaskOptions):
    """Options of :class:`PlainTask`."""

    frames: list[Count] = Field([8], min_length=1, max_length=1)
    """The frame count."""


class MixedSamplingOptions(TaskOptions):
    """Options of :class:`MixedSamplingTask`."""

    frames: list[Count] = Field([4, 16], min_length=2, max_length=2)
    """The two frame counts."""
    mix_probability: float = Field(0.5, gt=0, le=1)
    """Probability to mix a video's smaller view into its larger (rho)."""


class ProportionalSamplingOptions(TaskOptions):
    """Options of :class:`ProportionalSamplingTask`."""

    frames: list[Count] = Field([4, 16], min_length=2)
    """Two or more frame counts."""
    largest_probability: float = Field(0.5, gt=0, lt=1)
    """Probability of a step at the largest count (p)."""


# The options of each task by its name; `register_task` adds those of other tasks.
TASK_OPTIONS: dict[str, type[TaskOptions]] = {
    "flexible": FlexibleOptions,
    "contrastive": ContrastiveOptions,
    "plain": PlainOptions,
    "mixed_sampling": MixedSamplingOptions,
    "proportional_sampling": ProportionalSamplingOptions,
    "ctc": CtcOptions,
    "probe": ProbeOptions,
}
