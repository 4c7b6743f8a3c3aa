"""Check a config for values out of range and for options that contradict each other."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ffn.core import frame_ranges
from ffn.engine.tasks import TASKS, TaskOptions

if TYPE_CHECKING:
    from ffn.engine.options import Config, DataConfig

# Least values of options.
AT_LEAST = {
    "train.batch_size": 1,
    "train.repeated_aug": 1,
    "train.grad_accum_steps": 1,
    "train.epochs": 1,
    "train.validate_epochs": 1,
    "train.save_steps": 0,
    "train.keep_checkpoints": 1,
    "train.max_bad_steps": 1,
    "train.precise_bn": 0,
    "train.mixup": 0,
    "train.cutmix": 0,
    "train.seed": 0,
    "data.workers": 0,
    "data.timeout": 0,
    "data.page_mib": 1,
    "data.page_window": 1,
    "data.cache_gib": 0,
    "optim.weight_decay": 0,
    "optim.gamma": 0,
    "optim.final_lr": 0,
    "optim.warmup_epochs": 0,
    "log.interval": 1,
}
ABOVE_ZERO = ("data.store_cache_gib", "optim.lr")
BELOW_ONE = (  # from 0
    "train.label_smoothing",
    "train.ema_decay",
    "model.dropout",
    "model.drop_path",
    "optim.momentum",
)
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
    "colour_jitter",
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
    found = [*_not_finite(config), *_out_of_range(config)]
    if config.task.name in TASKS:
        found += TASKS[config.task.name].problems(config.task)
    named = {*known, *_named(found)}
    for problem in (*_contradictions(config), *_crop_contradictions(config.data)):
        if not named & _named([problem]):
            found.append(problem)
    found += _refused_by_data(config.data, {*known, *_named(found)})
    return [problem for problem in found if not _named([problem]) & {*known}]


def nearest_multiples(value: int, divisor: int) -> str:
    """The multiples of a divisor below and above a value, for messages.

    >>> nearest_multiples(30, 4), nearest_multiples(3, 4)
    ('28 or 32', '4')
    """
    lower = value // divisor * divisor
    return f"{lower} or {lower + divisor}" if lower else f"{divisor}"


def _named(problems: Collection[str]) -> set[str]:
    """The options that messages mention."""
    return {key for text in problems for key in re.findall(r"\b[a-z]+\.[a-z_]+", text)}


def _not_finite(config: Config) -> Iterator[str]:
    for section in fields(config):
        options = getattr(config, section.name)
        for option in fields(options) if is_dataclass(options) else ():
            value = getattr(options, option.name)
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, float) and not math.isfinite(number):
                    yield f"{section.name}.{option.name} is {value}; give finite numbers"
                    break


def _out_of_range(config: Config) -> Iterator[str]:
    def value(key: str) -> float:
        section, name = key.split(".")
        return getattr(getattr(config, section), name)

    for key, least in AT_LEAST.items():
        if value(key) < least:
            yield f"{key} is {value(key)}; it must be at least {least}"
    for key in ABOVE_ZERO:
        if value(key) <= 0:
            yield f"{key} is {value(key)}; it must be positive"
    for key in BELOW_ONE:
        if not 0 <= value(key) < 1:
            yield f"{key} is {value(key)}; it must be from 0 to below 1"
    optim = config.optim
    if not 0 < optim.layer_decay <= 1:
        yield f"optim.layer_decay is {optim.layer_decay}; it must be above 0 and at most 1"
    if optim.base_batch_size is not None and optim.base_batch_size < 1:
        yield f"optim.base_batch_size is {optim.base_batch_size}; it must be at least 1, or null"
    clip = config.train.clip_grad_norm
    if clip is not None and clip <= 0:
        yield f"train.clip_grad_norm is {clip}; it must be above 0, or null for no clipping"
    if any(epoch < 0 for epoch in optim.milestones):
        yield f"optim.milestones is {optim.milestones}; every epoch must be at least 0"
    frames = config.task.frames
    if not frames or min(frames) < 1 or len(set(frames)) < len(frames):
        yield f"task.frames is {frames}; it must list different counts >= 1, e.g. [4, 8, 16]"
    elif not _valid_ranges(config.task):
        yield (
            f"task.ranges is {config.task.ranges} for task.frames {sorted(frames)}; give the first "
            "and the last count of a range around each of them, without overlap, e.g. "
            "[[2, 5], [6, 11], [12, 20]] for [4, 8, 16]"
        )
    if not config.data.test_frames or min(config.data.test_frames) < 1:
        yield f"data.test_frames is {config.data.test_frames}; every count must be at least 1"


def _valid_ranges(task: TaskOptions) -> bool:
    try:
        return bool(frame_ranges(task.trained_frames))
    except ValueError:
        return False


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
        "train.precise_bn and train.freeze_bn exclude each other": (
            train.precise_bn > 0 and train.freeze_bn
        ),
        "train.sync_bn and train.freeze_bn exclude each other": train.sync_bn and train.freeze_bn,
        "train.compile and train.sync_bn exclude each other: a compiled graph cannot contain "
        "collectives": train.compile and train.sync_bn,
        "train.compile and data.on_error=skip exclude each other: a batch without its unreadable "
        "videos would need another graph": train.compile and data.on_error.value == "skip",
        "model.pretrained and model.weights exclude each other": (
            model.pretrained and model.weights is not None
        ),
        "data.order=pages needs data.format=store": (
            data.order.value == "pages" and data.format.value != "store"
        ),
        f"data.resize {data.resize} is smaller than data.crop {data.crop}": data.resize < data.crop,
        "data.flip=swap needs data.flip_pairs": swaps and not data.flip_pairs,
        "data.flip_pairs needs data.flip=swap": not swaps and bool(data.flip_pairs),
        "log.tensorboard needs TensorBoard: pip install 'frame-flexible[tensorboard]'": (
            config.log.tensorboard and find_spec("tensorboard") is None
        ),
    }
    yield from (message for message, wrong in found.items() if wrong)


def _crop_contradictions(data: DataConfig) -> Iterator[str]:
    """Options of a random crop that the chosen crop_mode does not read."""
    defaults = type(data)()
    for name, mode in CROP_OPTIONS.items():
        if data.crop_mode.value != mode and getattr(data, name) != getattr(defaults, name):
            yield f"data.{name} needs data.crop_mode={mode}; crop_mode is {data.crop_mode.value}"


def _refused_by_data(data: DataConfig, wrong: Collection[str]) -> Iterator[str]:
    """Values that the objects of ``ffn.data`` refuse, unless one of them is known to be wrong."""
    from ffn.data import Preprocessing, Protocol, TrainTransform

    if "data.test_protocol" not in wrong:
        try:
            Protocol.parse(data.test_protocol)
        except ValueError as error:
            yield f"data.test_protocol: {error}"
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
            colour_jitter=data.colour_jitter,
            randaugment=data.randaugment,
            random_erasing=data.random_erasing,
        )
    except ValueError as error:
        yield f"data: {error}"
