"""All options of training and testing, with defaults, meanings and units.

The options of a task are in the ``Options`` class of the task (:mod:`ffn.engine.tasks`). Ranges are
checked by :mod:`ffn.engine.config_checks`, and printed by ``--help``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ffn.engine.option_fields import option
from ffn.engine.tasks import FlexibleOptions


class Views(Enum):
    """Order of the views' forward and backward passes in a step."""

    together = "together"
    sequential = "sequential"


class Optimizer(Enum):
    """Optimizer."""

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


class ClassWeights(Enum):
    """Weights of the classes in the loss; see ``ffn.engine.class_weights``."""

    none = "none"
    balanced = "balanced"
    sqrt = "sqrt"


class Precision(Enum):
    """Precision of the forward pass."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class OnError(Enum):
    """Reaction to an unreadable video."""

    fail = "fail"
    skip = "skip"


class Labels(Enum):
    """Number of labels of a video; see ``ffn.labels``."""

    single = "single"
    multi = "multi"


class DataFormat(Enum):
    """Source of the frames."""

    video = "video"
    store = "store"


class Sampling(Enum):
    """Frame sampling; see ``ffn.data.sampling``."""

    segment = "segment"
    interval = "interval"
    dense = "dense"


class CropMode(Enum):
    """Random crop of training; see ``ffn.data.crops``."""

    multiscale = "multiscale"
    resized = "resized"
    scale_jitter = "scale_jitter"


class Color(Enum):
    """Channel order of the network's input."""

    rgb = "rgb"
    bgr = "bgr"


class Decoder(Enum):
    """Video decoder; see ``ffn.data.decoding``."""

    auto = "auto"
    pyav = "pyav"
    decord = "decord"


class Flip(Enum):
    """Horizontal flip in training. Not "off" and "on", which YAML reads as booleans."""

    none = "none"
    random = "random"
    swap = "swap"


class Wandb(Enum):
    """Mode of Weights & Biases."""

    disabled = "disabled"
    online = "online"
    offline = "offline"


@dataclass
class ModelConfig:
    """The network."""

    name: str = option("tsm_r50", "registered model, tsm.<timm CNN> or tea.<timm Res2Net>")
    pretrained: bool = option(False, "start from published weights (ImageNet or Kinetics)")
    weights: str | None = option(
        None, "start from these weights: a zoo name, a file or hf://user/name"
    )
    dropout: float = option(0.5, "dropout before the classifier", least=0, below=1)
    drop_path: float = option(
        0.0, "stochastic depth of the last block; earlier blocks have less", least=0, below=1
    )


@dataclass
class DataConfig:
    """Videos, views and augmentation."""

    train: str = option("train.csv", "training annotations under root: list, csv, class folders")
    val: str = option("val.csv", "validation annotations under root: list, csv, class folders")
    root: str = option("data", "folder of the annotations and of the paths in them")
    labels: Labels = option(
        Labels.single, "labels per video: single; multi: any number, a csv with the column labels"
    )
    format: DataFormat = option(
        DataFormat.video, "read the files in the annotations, or a clip store made from them"
    )
    store: str = option("store", "clip store: folder under root, or URL (https://…, s3://…)")
    classes: str | None = option(None, "file with one class name per line; null: from train")
    frame_pattern: str | None = option(None, "file names in a frame folder, e.g. {:05d}.jpg")
    decoder: Decoder = option(
        Decoder.auto, "video decoder; auto reads every format, the others refuse unsafe files"
    )
    test_frames: list[int] = option(
        [4, 6, 8, 12, 16],
        "frame counts of the validation, in addition to the trained ones",
        least=1,
    )
    sampling: Sampling = option(Sampling.segment, "frame sampling")
    nested: bool = option(False, "smaller views are subsets of the largest: fewer decoded frames")
    crop: int = option(224, "side of the network input, px", least=1)
    resize: int = option(256, "short side before the test crop, px", least=1)
    test_protocol: str = option(
        "1x1", "clips x crops per video in validation and tests; 1 or 3 crops"
    )
    crop_mode: CropMode = option(CropMode.multiscale, "random crop of TSN, Inception or SlowFast")
    scales: list[float] = option(
        [1.0, 0.875, 0.75, 0.66], "multiscale: crop side / short side", above=0, most=1
    )
    area: list[float] = option(
        [0.08, 1.0], "resized: range of the crop's share of the frame", above=0, most=1
    )
    aspect: list[float] = option([0.75, 1.3333], "resized: range of width / height", above=0)
    jitter_scales: list[int] = option(
        [256, 320], "scale_jitter: range of the short side, px", least=1
    )
    flip: Flip = option(Flip.none, "horizontal flip; swap exchanges the labels of flip_pairs")
    flip_pairs: list[list[str]] = option([], "class names that a flip exchanges, for flip=swap")
    color_jitter: list[float] = option(
        [0.0, 0.0, 0.0, 0.0],
        "strength of brightness, contrast, saturation, hue; 0: off",
        least=0,
        most=100,
    )
    randaugment: str | None = option(None, "timm policy, e.g. rand-m7-n4-mstd0.5-inc1; null: off")
    random_erasing: float = option(0.0, "probability of random erasing", least=0, most=1)
    mean: list[float] = option(
        [0.485, 0.456, 0.406], "mean of the normalization, in the order of color", least=0, most=1
    )
    std: list[float] = option(
        [0.229, 0.224, 0.225], "standard deviation of the normalization", above=0
    )
    color: Color = option(Color.rgb, "channel order of the network's input")
    workers: int = option(
        4, "loader processes per training process; 0: load in the process", least=0
    )
    timeout: float = option(
        600.0,
        "seconds to wait for a batch before the run ends with an error; 0: no limit",
        least=0,
        most=30 * 86400,
    )
    cache_gib: float = option(
        0.0, "memory per loader process for decoded videos, GiB", least=0, most=2**20
    )
    on_error: OnError = option(OnError.fail, "unreadable video: fail, or skip and count")
    allow_changes: bool = option(
        False, "a resumed run accepts replaced files, and skips videos taken out of its lists"
    )


@dataclass
class TrainConfig:
    """The training loop."""

    epochs: int = option(50, "passes over the training videos", least=1)
    batch_size: int = option(
        32, "samples per optimizer step, over all processes and gradient accumulation", least=1
    )
    repeated_aug: int = option(
        1, "copies of each video in a batch (repeated augmentation)", least=1
    )
    mixup: float = option(
        0.0, "alpha of mixup; 0: off; with cutmix, one of them per batch", least=0
    )
    cutmix: float = option(0.0, "alpha of CutMix; 0: off", least=0)
    label_smoothing: float = option(0.0, "label smoothing", least=0, below=1)
    class_weights: ClassWeights = option(
        ClassWeights.none, "weights of the classes in the loss, from their numbers of videos"
    )
    class_weight_list: list[float] = option(
        [],
        "weights of the classes in the loss, in their order; []: class_weights",
        above=0,
        most=10**6,
    )
    grad_accum_steps: int = option(
        1, "micro-batches per optimizer step; BatchNorm sees one at a time", least=1
    )
    views: Views = option(Views.together, "views in one pass; sequential: one by one, less memory")
    activation_checkpointing: bool = option(
        False, "recompute residual blocks in the backward pass: less memory, more time"
    )
    compile: bool = option(False, "torch.compile, one graph per frame count")
    precision: Precision = option(Precision.fp32, "precision of the forward pass (autocast)")
    clip_grad_norm: float | None = option(20.0, "maximum gradient norm; null: no clipping", above=0)
    freeze_bn: bool = option(False, "do not train normalization layers or update their statistics")
    freeze_blocks: int | None = option(
        None, "freeze the stem and the first residual blocks; 0: the stem; null: none", least=0
    )
    freeze_modules: list[str] = option(
        [], "freeze modules or parameters by name patterns, e.g. [net.layer1]"
    )
    linear_probe: bool = option(False, "train the classifier alone; everything else is frozen")
    sync_bn: bool = option(
        False, "BatchNorm statistics over all processes, of one micro-batch each"
    )
    precise_bn: int = option(
        0, "micro-batches for exact BatchNorm statistics before a validation; 0: off", least=0
    )
    ema_decay: float = option(
        0.0, "moving average of weights and statistics; 0: off", least=0, below=1
    )
    validate_epochs: int = option(
        1, "epochs between validations; the last epoch always validates", least=1
    )
    patience: int = option(
        0, "validations without a better mean before the run ends early; 0: no early end", least=0
    )
    save_steps: int = option(0, "steps between checkpoints; 0: at the end of epochs only", least=0)
    keep_checkpoints: int = option(2, "newest checkpoints to keep, in addition to best.pt", least=1)
    max_bad_steps: int = option(
        10, "consecutive steps with a non-finite loss or gradient before the run ends", least=1
    )
    deterministic: bool = option(False, "deterministic algorithms only; slower")
    seed: int = option(
        0, "seed of initialization, order, sampling and augmentation", least=0, most=2**32 - 1
    )


@dataclass
class OptimConfig:
    """Optimizer and schedule."""

    name: Optimizer = option(Optimizer.sgd, "optimizer; sgd has no Nesterov momentum")
    lr: float = option(
        0.01, "learning rate, for train.batch_size or base_batch_size samples", above=0
    )
    base_batch_size: int | None = option(
        None,
        "batch size that lr belongs to; lr scales to train.batch_size; null: no scaling",
        least=1,
    )
    momentum: float = option(0.9, "momentum of sgd", least=0, below=1)
    weight_decay: float = option(5e-4, "weight decay; biases and norms have none", least=0)
    groups: Groups = option(
        Groups.tsm, "tsm: head weight lr x5, head bias x10, biases x2; standard: one lr"
    )
    layer_decay: float = option(
        1.0, "factor of lr per block towards the input; 1: off", above=0, most=1
    )
    schedule: Schedule = option(Schedule.step, "learning-rate schedule")
    milestones: list[float] = option(
        [20, 40], "epochs at which step multiplies lr by gamma", least=0
    )
    gamma: float = option(0.1, "factor of the step schedule", least=0)
    final_lr: float = option(0.0, "lr at the end of the cosine schedule, scaled as lr is", least=0)
    warmup_epochs: float = option(0.0, "epochs of linear warm-up from lr / 100", least=0)


@dataclass
class LogConfig:
    """Output of a run."""

    output: str | None = option(
        None, "run folder; null: runs/CONFIG, or runs/CONFIG_2, … if that has another run"
    )
    interval: int = option(
        50, "optimizer steps between log lines; an epoch with fewer has one at its end", least=1
    )
    wandb: Wandb = option(Wandb.disabled, "Weights & Biases")
    project: str = option("ffn", "wandb project")
    tensorboard: bool = option(False, "write TensorBoard event files to the run folder")


@dataclass
class Config:
    """All options. The section ``task`` has the options of the task that ``task.name`` names."""

    imports: list[str] = option([], "your own packages to import first")
    model: ModelConfig = field(default_factory=ModelConfig)
    task: Any = field(default_factory=FlexibleOptions)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    log: LogConfig = field(default_factory=LogConfig)
