"""Values outside their range, and options that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffn.engine.options import Config, DataConfig


def problems(config: Config) -> list[str]:
    """What is wrong with a config, each with what to change; nothing if it can be used."""
    task, train, data, optim = config.task, config.train, config.data, config.optim
    frames = task.frames
    found = {
        f"task.frames is {frames}; give positive counts, none twice": not frames
        or min(frames) < 1
        or len(set(frames)) < len(frames),
        f"task.frames is {frames}; task.name=plain trains exactly one": task.name.value == "plain"
        and len(frames) != 1,
        f"data.test_frames is {data.test_frames}; give positive counts": not data.test_frames
        or min(data.test_frames) < 1,
        f"train.batch_size is {train.batch_size}; at least 1": train.batch_size < 1,
        f"train.save_steps is {train.save_steps}; at least 0": train.save_steps < 0,
        f"train.keep_checkpoints is {train.keep_checkpoints}; at least 1": train.keep_checkpoints
        < 1,
        f"train.precise_norms is {train.precise_norms}; at least 0": train.precise_norms < 0,
        "train.precise_norms and train.freeze_norms exclude each other": train.precise_norms > 0
        and train.freeze_norms,
        "train.compile and data.on_error=skip exclude each other: a batch that lacks a video would "
        "be another graph": train.compile and data.on_error.value == "skip",
        "train.compile and train.sync_norms exclude each other: a graph takes no collective": (
            train.compile and train.sync_norms
        ),
        "train.sync_norms and train.freeze_norms exclude each other": train.sync_norms
        and train.freeze_norms,
        f"train.ema_decay is {train.ema_decay}; 0 <= d < 1": not 0 <= train.ema_decay < 1,
        f"optim.layer_decay is {optim.layer_decay}; 0 < d <= 1": not 0 < optim.layer_decay <= 1,
        f"train.max_bad_steps is {train.max_bad_steps}; at least 1": train.max_bad_steps < 1,
        f"optim.base_batch is {optim.base_batch}; at least 1, or null": optim.base_batch is not None
        and optim.base_batch < 1,
        f"data.workers is {data.workers}; at least 0": data.workers < 0,
        f"data.timeout is {data.timeout}; at least 0": data.timeout < 0,
        f"data.store_cache_gib is {data.store_cache_gib}; above 0": data.store_cache_gib <= 0,
        f"data.page_mib is {data.page_mib}; at least 1": data.page_mib < 1,
        f"data.page_window is {data.page_window}; at least 1": data.page_window < 1,
        "data.order=pages needs data.format=store": data.order.value == "pages"
        and data.format.value != "store",
        f"data.cache_gib is {data.cache_gib}; at least 0": data.cache_gib < 0,
        f"train.batch_size {train.batch_size} is not divisible by train.accumulate "
        f"{train.accumulate}": train.accumulate < 1 or train.batch_size % train.accumulate != 0,
        f"train.repeats is {train.repeats}; at least 1": train.repeats < 1,
        f"train.batch_size {train.batch_size} is not divisible by train.repeats {train.repeats} x "
        f"train.accumulate {train.accumulate}": min(train.repeats, train.accumulate) > 0
        and train.batch_size % (train.repeats * train.accumulate) != 0,
        f"train.mixup is {train.mixup}; at least 0": train.mixup < 0,
        f"train.cutmix is {train.cutmix}; at least 0": train.cutmix < 0,
        f"train.label_smoothing is {train.label_smoothing}; 0 <= s < 1": not 0
        <= train.label_smoothing
        < 1,
        f"train.epochs is {train.epochs}; at least 1": train.epochs < 1,
        f"train.validate_epochs is {train.validate_epochs}; at least 1": train.validate_epochs < 1,
        f"log.interval is {config.log.interval}; at least 1": config.log.interval < 1,
        f"optim.lr is {optim.lr}; it must be positive": optim.lr <= 0,
        f"model.dropout is {config.model.dropout}; 0 <= p < 1": not 0 <= config.model.dropout < 1,
        f"model.drop_path is {config.model.drop_path}; 0 <= p < 1": not 0
        <= config.model.drop_path
        < 1,
        f"task.distill_weight is {task.distill_weight}; at least 0": task.distill_weight < 0,
        f"data.resize {data.resize} is smaller than data.crop {data.crop}": data.resize < data.crop,
        "data.flip=swap needs data.flip_pairs": data.flip.value == "swap" and not data.flip_pairs,
        "data.flip_pairs needs data.flip=swap": data.flip.value != "swap" and bool(data.flip_pairs),
        "log.tensorboard needs TensorBoard: pip install 'frame-flexible[tensorboard]'": (
            config.log.tensorboard and find_spec("tensorboard") is None
        ),
        "model.pretrained and model.weights exclude each other": config.model.pretrained
        and config.model.weights is not None,
    }
    wrong = [message for message, wrong in found.items() if wrong]
    return wrong or [*_without_effect(data), *_refused_by_data(data)]


def _without_effect(data: DataConfig) -> Iterator[str]:
    """Options of a random crop that another one does not read."""
    defaults = type(data)()
    for option, mode in (
        ("scales", "multiscale"),
        ("area", "resized"),
        ("aspect", "resized"),
        ("jitter_scales", "scale_jitter"),
    ):
        if data.crop_mode.value != mode and getattr(data, option) != getattr(defaults, option):
            yield (
                f"data.{option} needs data.crop_mode={mode}; it is {data.crop_mode.value}, which "
                f"does not read {option}"
            )


def _refused_by_data(data: DataConfig) -> Iterator[str]:
    """What the objects that are built from the options would say."""
    from ffn.data import Preprocessing, Protocol, TrainTransform  # --help does without torch

    try:
        Protocol.parse(data.test_protocol)
        TrainTransform(
            Preprocessing(crop=data.crop, resize=data.resize, mean=data.mean, std=data.std),
            crop_mode=data.crop_mode.value,
            scales=data.scales,
            area=data.area,
            aspect=data.aspect,
            jitter_scales=data.jitter_scales,
            colour_jitter=data.colour_jitter,
            randaugment=data.randaugment,
            erasing=data.erasing,
        )
    except ValueError as error:
        yield f"data: {error}"
