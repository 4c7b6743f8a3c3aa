"""Check a config for values out of range and for options that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ffn.core import frame_ranges
from ffn.data.sampling import WINDOW
from ffn.engine.option_fields import Range, numbers_in
from ffn.engine.option_values import shown
from ffn.engine.tasks import TASKS, TaskOptions
from ffn.limits import CLIP_FRAMES

if TYPE_CHECKING:
    from ffn.engine.options import Config, DataConfig, TrainConfig

# Options of a random crop, and the crop_mode that reads them.
CROP_OPTIONS = {
    "scales": "multiscale",
    "area": "resized",
    "aspect": "resized",
    "jitter_scales": "scale_jitter",
}
# Options of the training transform.
TRANSFORM_OPTIONS = (
    "crop",
    "resize",
    "mean",
    "std",
    "crop_mode",
    *CROP_OPTIONS,
    "color_jitter",
    "randaugment",
    "random_erasing",
)


def find_problems(config: Config, known: Collection[str] = ()) -> list[str]:
    """Messages about a config, each with the remedy; empty if it can be used.

    Args:
        config: the options.
        known: options whose problem is reported already. Other problems that mention one of them
            are left out.
    """
    found = [*_out_of_range(config)]
    wrong = named_options(found)
    found += [text for text in _frame_problems(config) if not wrong & named_options([text])]
    if config.task.name in TASKS:
        found += TASKS[config.task.name].problems(config.task)
    named = {*known, *named_options(found)}
    for problem in (*_contradictions(config), *_crop_contradictions(config.data)):
        if not named & named_options([problem]):
            found.append(problem)
    found += _refused_by_data(config.data, {*known, *named_options(found)})
    return [problem for problem in found if not named_options([problem]) & {*known}]


def nearest_multiples(value: int, divisor: int) -> str:
    """The multiples of a divisor below and above a value, for messages.

    >>> nearest_multiples(30, 4), nearest_multiples(3, 4)
    ('28 or 32', '4')
    """
    lower = value // divisor * divisor
    return f"{lower} or {lower + divisor}" if lower else f"{divisor}"


def named_options(problems: Collection[str]) -> set[str]:
    """The options that messages mention."""
    return {key for text in problems for key in re.findall(r"\b[a-z]+\.[a-z_]+", text)}


def _out_of_range(config: Config) -> Iterator[str]:
    """Numbers that are not finite or outside the range of their option."""
    for section in fields(config):
        options = getattr(config, section.name)
        for option in fields(options) if is_dataclass(options) else ():
            value = getattr(options, option.name)
            range_ = option.metadata.get("range", Range())
            wrong = next(filter(None, map(range_.refusal, numbers_in(value))), None)
            if wrong:
                one = "each number" if isinstance(value, (list, dict)) else "it"
                null = ", or null" if "None" in str(option.type) else ""
                yield f"{section.name}.{option.name} is {shown(value)}; {one} must be {wrong}{null}"


def _frame_problems(config: Config) -> Iterator[str]:
    """Frame counts that are no set of counts, and ranges that do not belong to them."""
    frames = config.task.frames
    if not frames or len({*frames}) < len(frames):
        yield f"task.frames is {shown(frames)}; it must list different counts, e.g. [4, 8, 16]"
    elif min(frames) > 0 and not _valid_ranges(config.task):
        yield (
            f"task.ranges is {shown(config.task.ranges)} for task.frames {shown(sorted(frames))}; "
            "give the first and the last count of a range around each of them, without overlap, "
            "e.g. [[2, 5], [6, 11], [12, 20]] for [4, 8, 16]"
        )
    most = max([*numbers_in(frames), *numbers_in(config.data.test_frames)], default=0)
    if refusal := CLIP_FRAMES.refusal(most):
        yield f"task.frames or data.test_frames has {refusal}"
    if not config.data.test_frames:
        yield "data.test_frames is []; give one count or more, e.g. [4, 8, 16]"


def _valid_ranges(task: TaskOptions) -> bool:
    try:
        return bool(frame_ranges(task.trained_frames))
    except ValueError:
        return False


def _dense_contradictions(config: Config) -> dict[str, bool]:
    """Counts of frames that a dense clip cannot have."""
    if config.data.sampling.value != "dense":
        return {}
    counts = {
        "task.frames": config.task.frames,
        "task.ranges": getattr(config.task, "ranges", None),
        "data.test_frames": config.data.test_frames,
    }
    largest = {option: max(numbers_in(given), default=0) for option, given in counts.items()}
    return {
        f"data.sampling is dense, whose clips have at most {WINDOW} frames, and {option} has "
        f"{number}; use data.sampling=segment or fewer frames": number > WINDOW
        for option, number in largest.items()
    }


def _contradictions(config: Config) -> Iterator[str]:
    """Combinations of options that cannot be used."""
    train, data, model = config.train, config.data, config.model
    swaps = data.flip.value == "swap"
    share = max(1, train.repeated_aug) * max(1, train.grad_accum_steps)
    found = {
        f"train.batch_size is {train.batch_size}; it must be divisible by {share} "
        f"(train.grad_accum_steps {train.grad_accum_steps} x train.repeated_aug "
        f"{train.repeated_aug}). Use {nearest_multiples(train.batch_size, share)}": (
            train.batch_size % share != 0
        ),
        "train.precise_bn and train.freeze_bn exclude each other; drop one": (
            train.precise_bn > 0 and train.freeze_bn
        ),
        "train.sync_bn and train.freeze_bn exclude each other; drop one": train.sync_bn
        and train.freeze_bn,
        **_probe_contradictions(train),
        "train.class_weights and train.class_weight_list exclude each other; drop one": (
            train.class_weights.value != "none" and bool(train.class_weight_list)
        ),
        "train.compile and train.sync_bn exclude each other, as a compiled graph cannot contain "
        "collectives; drop one": train.compile and train.sync_bn,
        "train.compile and data.on_error=skip exclude each other, as a batch without its "
        "unreadable videos would need another graph; drop one": train.compile
        and data.on_error.value == "skip",
        "train.compile and data.allow_changes exclude each other, as a batch without its "
        "removed videos would need another graph; drop one": train.compile and data.allow_changes,
        "model.pretrained and model.weights exclude each other; drop one": (
            model.pretrained and model.weights is not None
        ),
        f"data.resize is {data.resize}; it must be at least data.crop, {data.crop}": (
            data.resize < data.crop
        ),
        **_dense_contradictions(config),
        "data.flip=swap needs data.flip_pairs": swaps and not data.flip_pairs,
        "data.flip_pairs needs data.flip=swap": not swaps and bool(data.flip_pairs),
        "log.tensorboard needs TensorBoard: pip install 'frame-flexible[tensorboard]'": (
            config.log.tensorboard and find_spec("tensorboard") is None
        ),
    }
    yield from (message for message, wrong in found.items() if wrong)


def _probe_contradictions(train: TrainConfig) -> dict[str, bool]:
    """Options that do nothing for frozen features."""
    without_effect = {
        "freeze_bn": train.freeze_bn,
        "freeze_blocks": train.freeze_blocks is not None,
        "freeze_modules": bool(train.freeze_modules),
        "sync_bn": train.sync_bn,
        "precise_bn": train.precise_bn > 0,
        "activation_checkpointing": train.activation_checkpointing,
    }
    return {
        f"train.{name} has no effect with train.linear_probe, which freezes all but the "
        f"classifier; drop train.{name}": train.linear_probe and given
        for name, given in without_effect.items()
    }


def _crop_contradictions(data: DataConfig) -> Iterator[str]:
    """Options of a random crop that the chosen crop_mode does not read."""
    defaults = type(data)()
    for name, mode in CROP_OPTIONS.items():
        if data.crop_mode.value != mode and getattr(data, name) != getattr(defaults, name):
            yield f"data.{name} needs data.crop_mode={mode}; crop_mode is {data.crop_mode.value}"


def _refused_by_data(data: DataConfig, wrong: Collection[str]) -> Iterator[str]:
    """Values that the objects of ``ffn.data`` refuse, unless one of them is known to be wrong."""
    from ffn.data import Preprocessing, Protocol, TrainTransform
    from ffn.data.decoding import check_pattern

    if "data.test_protocol" not in wrong:
        try:
            Protocol.parse(data.test_protocol)
        except ValueError as error:
            yield f"data.test_protocol: {error}"
    if data.frame_pattern is not None and "data.frame_pattern" not in wrong:
        try:
            check_pattern(data.frame_pattern)
        except ValueError as error:
            yield f"data.frame_{error}"
    if any(f"data.{name}" in wrong for name in TRANSFORM_OPTIONS):
        return
    try:
        TrainTransform(
            Preprocessing(crop=data.crop, resize=data.resize, mean=data.mean, std=data.std),
            crop_mode=data.crop_mode.value,
            scales=data.scales,
            area=data.area,
            aspect=data.aspect,
            jitter_scales=data.jitter_scales,
            color_jitter=data.color_jitter,
            randaugment=data.randaugment,
            random_erasing=data.random_erasing,
        )
    except ValueError as error:
        yield f"data.{error}"
