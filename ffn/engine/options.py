"""Every option of training and testing, with its default: the one place where they stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Task(Enum):
    """What is trained."""

    flexible = "flexible"
    plain = "plain"


class SmallViews(Enum):
    """What the views below the largest learn from."""

    distill = "distill"
    label = "label"
    mixed = "mixed"


class Private(Enum):
    """What each trained count owns."""

    norms = "norms"
    none = "none"
    all = "all"


class Views(Enum):
    """How the views of a batch share one optimiser step."""

    together = "together"
    sequential = "sequential"


class Optimiser(Enum):
    """Optimiser."""

    sgd = "sgd"
    adamw = "adamw"


class Groups(Enum):
    """Parameter groups."""

    tsm = "tsm"
    standard = "standard"


class Schedule(Enum):
    """Learning-rate schedule."""

    step = "step"
    cosine = "cosine"


class Precision(Enum):
    """Arithmetic of the forward pass."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class OnError(Enum):
    """What an unreadable video does."""

    fail = "fail"
    skip = "skip"


class DataFormat(Enum):
    """What videos are read from."""

    video = "video"
    store = "store"


class Order(Enum):
    """How training goes through the videos."""

    random = "random"
    pages = "pages"


class Sampling(Enum):
    """Which frames make a clip; see ``ffn.data.sampling``."""

    segment = "segment"
    interval = "interval"
    dense = "dense"


class CropMode(Enum):
    """Random crop of training; see ``ffn.data.crops``."""

    multiscale = "multiscale"
    resized = "resized"
    scale_jitter = "scale_jitter"


class Colour(Enum):
    """Order of the channels that the network takes."""

    rgb = "rgb"
    bgr = "bgr"


class Decoder(Enum):
    """How video files are read; see ``ffn.data.decoding``."""

    auto = "auto"
    pyav = "pyav"
    decord = "decord"
    torchcodec = "torchcodec"


class Flip(Enum):
    """Horizontal flip in training; not off and on, which yaml reads as booleans."""

    none = "none"
    random = "random"
    swap = "swap"


class Wandb(Enum):
    """Weights & Biases."""

    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


def _option(default: Any, meaning: str) -> Any:
    make = {"default_factory": lambda: list(default)} if isinstance(default, list) else {}
    make = make or {"default": default}
    return field(**make, metadata={"help": meaning})


@dataclass
class ModelConfig:
    """The network."""

    name: str = _option("tsm_r50", "registered model, tsm.<timm CNN> or tea.<timm Res2Net>")
    pretrained: bool = _option(False, "start from published weights: timm's, or Kinetics")
    weights: str | None = _option(None, "start from these weights: a zoo name or a file")
    dropout: float = _option(0.5, "dropout probability before the classifier, 0 to 1")
    drop_path: float = _option(
        0.0, "probability that a residual branch of the last block is skipped; earlier ones less"
    )


@dataclass
class TaskConfig:
    """What is learned, and at which frame counts."""

    name: Task = _option(Task.flexible, "flexible: all counts in one network; plain: one count")
    frames: list[int] = _option([4, 8, 16], "trained frame counts; exactly one when plain")
    private: Private = _option(Private.norms, "owned per count: norms (paper), none, all")
    alteration: bool = _option(True, "weight alteration per count at the backbone's sites")
    small_views: SmallViews = _option(
        SmallViews.distill, "smaller views learn by KL from the largest, the label, or half of each"
    )
    distill_weight: float = _option(1.0, "weight of each smaller view's loss (lambda), >= 0")


@dataclass
class DataConfig:
    """Videos, views and augmentation."""

    train: str = _option(
        "train.csv", "training annotations: list, csv or class folders, under root"
    )
    val: str = _option("val.csv", "validation annotations, likewise")
    root: str = _option("data", "folder of the annotations and of the paths in them")
    format: DataFormat = _option(
        DataFormat.video, "read the files named in the lists, or a clip store made from them"
    )
    store: str = _option("store", "clip store: folder under root, or address (https://…, s3://…)")
    store_cache_gib: float = _option(100.0, "GiB of disk for shards of a store at an address")
    order: Order = _option(
        Order.random, "training order; pages: few parts of a store at a time, for slow storage"
    )
    page_mib: int = _option(256, "MiB of a store that make a page, for order=pages")
    page_window: int = _option(16, "pages in use at a time, for order=pages")
    classes: str | None = _option(None, "file with one class name per line; default: from train")
    frame_pattern: str | None = _option(None, "file names in a frame folder, as {:05d}.jpg")
    decoder: Decoder = _option(
        Decoder.auto,
        "video decoder: auto reads all files; the others refuse what they read wrongly",
    )
    test_frames: list[int] = _option(
        [4, 6, 8, 12, 16], "frame counts of validation, trained and unseen"
    )
    sampling: Sampling = _option(Sampling.segment, "which frames make a clip")
    nested: bool = _option(False, "smaller views are subsets of the largest: fewer decoded frames")
    crop: int = _option(224, "side of the square network input in px")
    resize: int = _option(256, "short side before the test crop in px")
    test_protocol: str = _option(
        "1x1", "clips x crops per video in validation and tests; 1 or 3 crops, 3 of them resize px"
    )
    crop_mode: CropMode = _option(CropMode.multiscale, "random crop: of TSN, Inception, SlowFast")
    scales: list[float] = _option([1.0, 0.875, 0.75, 0.66], "multiscale: crop sides / short side")
    area: list[float] = _option([0.08, 1.0], "resized: least and largest share of the frame")
    aspect: list[float] = _option([0.75, 1.3333], "resized: least and largest width / height")
    jitter_scales: list[int] = _option([256, 320], "scale_jitter: range of the short side in px")
    flip: Flip = _option(Flip.none, "horizontal flip; swap: labels change sides too")
    flip_pairs: list[list[str]] = _option([], "class names that a flip exchanges, for flip=swap")
    colour_jitter: list[float] = _option(
        [0.0, 0.0, 0.0, 0.0], "strength of brightness, contrast, saturation, hue; zeros: off"
    )
    randaugment: str | None = _option(None, "timm's policy, as rand-m7-n4-mstd0.5-inc1; null: off")
    random_erasing: float = _option(0.0, "probability that a box becomes noise, 0 to 1")
    mean: list[float] = _option(
        [0.485, 0.456, 0.406], "mean of the normalisation, of 0..1, in the order of colour"
    )
    std: list[float] = _option([0.229, 0.224, 0.225], "standard deviation, of 0..1, likewise")
    colour: Colour = _option(Colour.rgb, "order of the channels that the network takes")
    workers: int = _option(4, "loader processes per training process; 0 loads in the process")
    timeout: float = _option(
        600.0, "seconds to wait for a batch before a run ends and names the videos; 0: for ever"
    )
    cache_gib: float = _option(
        0.0,
        "GiB per loader process for decoded training videos: small sets are decoded once",
    )
    on_error: OnError = _option(OnError.fail, "unreadable video: fail, or skip and count")


@dataclass
class TrainConfig:
    """The loop."""

    epochs: int = _option(50, "passes over the training videos")
    batch_size: int = _option(
        32, "samples per optimiser step, over all processes, accumulation and repeats"
    )
    repeated_aug: int = _option(
        1, "draws of each video in its batch of batch_size / repeats videos"
    )
    mixup: float = _option(0.0, "alpha of mixup, 0: off; with cutmix too, either for each batch")
    cutmix: float = _option(0.0, "alpha of CutMix, 0: off")
    label_smoothing: float = _option(0.0, "share of the label spread over all classes, 0 to 1")
    grad_accum_steps: int = _option(1, "micro-batches per optimiser step")
    views: Views = _option(Views.together, "views in one pass, or sequential: less memory")
    activation_checkpointing: bool = _option(
        False, "residual blocks run again in the backward: less memory"
    )
    compile: bool = _option(False, "torch.compile, a graph per frame count: minutes at the start")
    precision: Precision = _option(Precision.fp32, "fp32, bf16 or fp16 (autocast)")
    clip_grad_norm: float | None = _option(20.0, "largest gradient norm; null: no clipping")
    freeze_bn: bool = _option(False, "normalisation layers keep statistics and affine as given")
    sync_bn: bool = _option(False, "BatchNorm statistics over all processes")
    precise_bn: int = _option(
        0, "micro-batches whose exact statistics norms get before a validation; 0: running ones"
    )
    ema_decay: float = _option(
        0.0, "moving average of weights and statistics is the network, 0 < d < 1; 0: off"
    )
    validate_epochs: int = _option(1, "epochs between validations; the last one always validates")
    save_steps: int = _option(0, "steps between checkpoints inside an epoch; 0: at epoch ends only")
    keep_checkpoints: int = _option(2, "newest checkpoints that stay, beside the best network")
    max_bad_steps: int = _option(
        10, "steps in a row with a loss or gradient that is not finite before a run ends"
    )
    deterministic: bool = _option(False, "only algorithms whose results repeat bit by bit; slower")
    seed: int = _option(0, "seed of initialisation, order, sampling and augmentation")


@dataclass
class OptimConfig:
    """Optimiser and schedule."""

    name: Optimiser = _option(Optimiser.sgd, "sgd (Nesterov off) or adamw")
    lr: float = _option(0.01, "learning rate, for train.batch_size or for base_batch_size samples")
    base_batch_size: int | None = _option(
        None, "samples per step that lr is meant for: scaled to train.batch_size; null: as it is"
    )
    momentum: float = _option(0.9, "momentum of sgd")
    weight_decay: float = _option(5e-4, "weight decay of the tensors that have one")
    groups: Groups = _option(
        Groups.tsm, "tsm: head weight lr x5, head bias x10, biases x2; standard: one lr"
    )
    layer_decay: float = _option(1.0, "factor of the rate per block towards the input; 1: off")
    schedule: Schedule = _option(Schedule.step, "step or cosine")
    milestones: list[float] = _option([20, 40], "epochs at which step multiplies the rate by gamma")
    gamma: float = _option(0.1, "factor of the step schedule")
    final_lr: float = _option(0.0, "rate at the end of the cosine schedule, scaled as lr is")
    warmup_epochs: float = _option(0.0, "epochs of linear warm-up from lr / 100")


@dataclass
class LogConfig:
    """Where a run writes, and what it shows."""

    output: str = _option("runs/default", "folder of the run: config, checkpoints, log.jsonl")
    interval: int = _option(50, "optimiser steps between log lines")
    wandb: Wandb = _option(Wandb.auto, "auto: online with an account configured, else offline")
    project: str = _option("ffn", "project name in wandb")
    tensorboard: bool = _option(False, "write TensorBoard event files into the run's folder")


@dataclass
class Config:
    """All options."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    log: LogConfig = field(default_factory=LogConfig)
