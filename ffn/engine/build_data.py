"""Build the splits, preprocessing, transforms and loaders of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ffn import data
from ffn.engine.config import ConfigError
from ffn.engine.distributed import World
from ffn.engine.features import FeatureDataset, hash_of
from ffn.engine.mixup import BatchMix
from ffn.engine.options import CROP_OPTIONS, Config, DataConfig
from ffn.engine.tasks import TASKS, Task

# Options of the data without which the clips of a video are the same.
OUTSIDE_OF_CLIPS = {"train", "val", "root", "classes", "labels", "test_frames", "test_protocol"}
OUTSIDE_OF_CLIPS |= {"workers", "timeout", "cache_gib", "store_cache_gib", "on_error"}


def check_labels(config: Config) -> None:
    """Raise ConfigError for a kind of labels that the task does not learn, or for what it lacks."""
    task = TASKS[config.task.name]
    given, known = config.data.labels, task.label_kinds
    if given not in known:
        tasks = [name for name, one in TASKS.items() if given in one.label_kinds]
        remedy = "Set one of them" + (f", or task.name={tasks[0]}" if tasks else "")
        learns = f"task {config.task.name} learns {', '.join(known)}"
        raise ConfigError(f"data.labels is {given!r}; {learns}. {remedy}")
    train = config.train
    weighted, swaps = train.class_weights != "none", config.data.flip == "swap"
    has_classes = task.needs_labels and known == ("single", "multi")
    if not has_classes and any((train.mixup, train.cutmix, train.label_smoothing, weighted, swaps)):
        raise ConfigError(
            "train.mixup, cutmix, label_smoothing and class_weights and data.flip=swap need "
            f"classes; task {config.task.name} has none with data.labels={given}. Leave them out"
        )


def read_config_splits(
    options: DataConfig,
    *,
    with_train: bool = True,
    classes: Sequence[str] | None = None,
    labelled: bool = True,
) -> data.Splits:
    """Read the annotations of a config; see :func:`ffn.data.read_splits`."""
    return data.read_splits(
        options.root,
        train=options.train,
        val=options.val,
        class_file=options.classes,
        classes=classes,
        with_train=with_train,
        labels=options.labels,
        labelled=labelled,
    )


def build_preprocessing(options: DataConfig) -> data.Preprocessing:
    """The preprocessing of clips, which checkpoints store."""
    names = {field.name for field in fields(data.Preprocessing)}
    return data.Preprocessing(**options.model_dump(include=names))


def build_train_loader(
    config: Config, splits: data.Splits, world: World, task: Task | None = None
) -> DataLoader:
    """Training batches: one micro-batch of this process each; features if the task reads them.

    Raises:
        ConfigError: the batch size is not divisible, or the frames of the store are too small.
        data.StoreError: the store cannot be used.
    """
    options, train = config.data, config.train
    _check_batch_size(config, world, len(splits.train))
    preprocessing = build_preprocessing(options)
    dataset = data.VideoDataset(
        splits.train,
        views=sorted(TASKS[config.task.name].views(config.task)),
        preprocessing=preprocessing,
        train=True,
        transform=_train_transform(options, preprocessing, splits.classes),
        nested=options.nested,
        varied=TASKS[config.task.name].compares_views,
        seed=train.seed,
        on_error=options.on_error,
        num_classes=len(splits.classes),
        labels=splits.labels,
        cache_bytes=int(options.cache_gib * 2**30),
        **_frame_source(options, resize=options.resize),
    )
    return data.make_loader(
        _features(config, dataset, task, splits.classes),
        batch_size=train.batch_size // (world.size * train.grad_accum_steps),
        workers=0 if task is not None and task.reads_features else options.workers,
        timeout=options.timeout,
        train=True,
        group_videos=train.group_videos,
        repeats=train.repeated_aug,
        seed=train.seed,
        rank=world.rank,
        world_size=world.size,
        frame_counts=_frame_counts(config),
    )


def build_class_weights(config: Config, splits: data.Splits) -> Tensor | None:
    """Weights of the classes in the loss (K,); None for none."""
    options = config.data
    if config.train.class_weights == "none":
        return None
    pairs = options.flip_pairs if options.flip == "swap" else ()
    return class_weights(
        [record.labels for record in splits.train],
        len(splits.classes),
        power=0.5 if config.train.class_weights == "sqrt" else 1.0,
        swapped=data.swap_pairs(pairs, splits.classes),
        multi_label=options.labels == "multi",
    )


def class_weights(
    labels: Sequence[Sequence[int]],
    num_classes: int,
    *,
    power: float = 1.0,
    swapped: Sequence[Sequence[int]] = (),
    multi_label: bool = False,
) -> Tensor:
    """Weights (K,) in float32, for n training videos of K classes, n_c of class c.

    With one label per video, ``w_c = a (n / (K n_c)) ** power``, with a such that the mean weight
    of the videos is 1: the loss keeps its scale. Classes without videos have the weight 0 and do
    not count in K. With several labels per video, ``w_c = ((n - n_c) / n_c) ** power``, for the
    positive labels (``pos_weight`` of torch); classes of no video and of every video have 1.

    >>> class_weights([[0], [0], [0], [1]], 2)
    tensor([0.6667, 2.0000])

    Args:
        labels: of each training video.
        num_classes: K.
        power: 1, or 0.5 for the square root, which balances less.
        swapped: pairs of classes that a random flip exchanges in half of the samples: both get
            their mean n_c.
        multi_label: videos may have several labels.
    """
    flat = torch.tensor([label for own in labels for label in own], dtype=torch.int64)
    counts = torch.bincount(flat, minlength=num_classes).double()
    for pair in map(list, swapped):
        counts[pair] = counts[pair].mean()
    if multi_label:
        weights = ((len(labels) - counts) / counts) ** power
        return weights.where((counts > 0) & (counts < len(labels)), 1.0).float()
    weights = (counts.sum() / ((counts > 0).sum() * counts)) ** power
    weights = weights.where(counts > 0, 0.0)
    return (weights * counts.sum() / (weights * counts).sum()).float()


def build_test_loader(
    config: Config,
    splits: data.Splits,
    world: World,
    *,
    frames: Sequence[int],
    preprocessing: data.Preprocessing,
    protocol: str | None = None,
    shuffle_frames: bool = False,
    task: Task | None = None,
) -> DataLoader:
    """Validation batches with a clip per frame count; each video is on one process only.

    A batch holds fewer videos if the protocol takes several clips and crops per video.
    ``shuffle_frames`` puts the frames of each clip in a random order. A task that compares
    views has the frames, crops and augmentation of training, the same in every test, and drawn
    anew for each view.
    """
    varied = task is not None and task.compares_views
    parsed = data.Protocol.parse(protocol or config.data.test_protocol)
    dataset = data.VideoDataset(
        splits.val,
        views=frames,
        preprocessing=preprocessing,
        train=varied,
        transform=_train_transform(config.data, preprocessing, splits.classes) if varied else None,
        protocol=parsed,
        shuffle_frames=shuffle_frames,
        varied=varied,
        on_error=config.data.on_error,
        num_classes=len(splits.classes),
        labels=splits.labels,
        **_frame_source(config.data, resize=preprocessing.resize),
    )
    return data.make_loader(
        _features(config, dataset, task, splits.classes),
        batch_size=max(1, clips_per_forward(config, world) // parsed.views),
        workers=0 if task is not None and task.reads_features else config.data.workers,
        timeout=config.data.timeout,
        rank=world.rank,
        world_size=world.size,
    )


def build_batch_mix(config: Config, num_classes: int) -> BatchMix:
    """Mixup, CutMix and label smoothing of a config."""
    train = config.train
    return BatchMix(
        num_classes,
        mixup=train.mixup,
        cutmix=train.cutmix,
        smoothing=train.label_smoothing,
        seed=train.seed,
        multi_label=config.data.labels == "multi",
    )


def clips_per_forward(config: Config, world: World) -> int:
    """Clips per forward pass of a test on each process: those of a training micro-batch."""
    return max(1, config.train.batch_size // (world.size * config.train.grad_accum_steps))


def store_location(options: DataConfig) -> str:
    """Folder or URL of the clip store of a config."""
    return options.store if "://" in options.store else str(Path(options.root) / options.store)


def _check_batch_size(config: Config, world: World, videos: int) -> None:
    train = config.train
    share = world.size * train.grad_accum_steps * train.repeated_aug
    if train.batch_size % share:
        lower = train.batch_size // share * share
        use = f"{lower} or {lower + share}" if lower else f"{share}"
        raise ConfigError(
            f"train.batch_size is {train.batch_size}; it must be divisible by {share} (processes x "
            f"grad_accum_steps x repeated_aug). Use {use}"
        )
    needed = train.batch_size // train.repeated_aug
    if needed > videos:
        raise ConfigError(
            f"train.batch_size is {train.batch_size} (with train.repeated_aug="
            f"{train.repeated_aug} {needed} videos per step); there are {videos} training videos. "
            "Lower train.batch_size"
        )
    is_contrastive, micro = TASKS[config.task.name].compares_views, train.batch_size // share
    if micro * (world.size if is_contrastive else 1) == 1 and (
        is_contrastive or train.mixup or train.cutmix
    ):
        raise ConfigError(
            f"train.batch_size is {train.batch_size}, of {share} (processes x grad_accum_steps x "
            "repeated_aug) forward passes of one video; mixup, cutmix and contrastive training "
            "need two or more. Raise train.batch_size, or lower train.grad_accum_steps"
        )


def _train_transform(
    options: DataConfig, preprocessing: data.Preprocessing, classes: Sequence[str]
) -> data.TrainTransform:
    augmentation = {"flip", "color_jitter", "randaugment", "random_erasing"}
    return data.TrainTransform(
        preprocessing,
        flip_pairs=data.swap_pairs(options.flip_pairs, classes),
        **options.model_dump(include={"crop_mode", *CROP_OPTIONS, *augmentation}),
    )


def _features(
    config: Config, dataset: data.VideoDataset, task: Task | None, classes: Sequence[str]
) -> Any:
    """The data set, or the features of its clips in a frozen network."""
    if task is None or not task.reads_features:
        return dataset
    options, backbone = config.task, task.model.model.backbone
    views = task.views(options).values() if dataset.train else [dict.fromkeys(dataset.views)]
    network = config.model.name, repr(options.trained_frames), options.interpolate, options.grid
    given = config.data.model_dump(exclude=OUTSIDE_OF_CLIPS)
    more = ["causal"] if config.model.causal else []
    if dataset.train and config.data.flip == "swap":
        more.append(data.swap_pairs(config.data.flip_pairs, classes))
    if config.data.format == "store":
        manifest = open_store(config.data).manifest
        more.append((manifest.short_side, manifest.quality))
    return FeatureDataset(
        dataset,
        task.model,
        source=lambda: (
            (*network, config.train.precision, hash_of(backbone.state_dict())),
            given,
            *more,
        ),
        numbers={number for view in views for number in view},
        variants=options.variants,
        half={"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.train.precision),
    )


def open_store(options: DataConfig) -> data.ClipStore:
    """The clip store of a config."""
    limit = options.store_cache_gib
    return data.ClipStore(
        store_location(options),
        root=options.root,
        cache_bytes=None if limit is None else int(limit * 2**30),
    )


def _frame_source(options: DataConfig, *, resize: int) -> dict[str, Any]:
    """Arguments of ``data.VideoDataset`` for the source of the frames."""
    if options.format == "video":
        pattern = {} if options.frame_pattern is None else {"pattern": options.frame_pattern}
        return {"decoder": options.decoder, **pattern}
    store = open_store(options)
    if store.manifest.short_side < resize:
        raise ConfigError(
            f"the frames of the store {store.path} have a short side of "
            f"{store.manifest.short_side} px; data.resize is {resize} px. Pack the store at that "
            "size, lower data.resize, or use data.format=video"
        )
    return {"source": store.open_record}


def _frame_counts(config: Config) -> data.FrameCounts | None:
    """The function that draws the frames of a step; None if every view has its own count."""
    views = TASKS[config.task.name].views(config.task)
    if all({*numbers} == {view} for view, numbers in views.items()):
        return None
    return data.FrameCounts(
        views, seed=config.train.seed, batches_per_step=config.train.grad_accum_steps
    )
