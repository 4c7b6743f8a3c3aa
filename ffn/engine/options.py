"""All options of training and testing, with defaults, meanings, units and ranges.

Those of the tasks are in :mod:`ffn.engine.task_options`.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from ffn.engine.task_options import Count, FlexibleOptions, Section, TaskOptions
from ffn.frame_counts import WINDOW

Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]

# Options of a random crop, and the crop_mode that reads them.
CROP_OPTIONS = {
    "scales": "multiscale",
    "area": "resized",
    "aspect": "resized",
    "jitter_scales": "scale_jitter",
}


class ModelConfig(Section):
    """The network."""

    name: str = "tsm_r50"
    """Registered model, tsm.<timm CNN> or tea.<timm Res2Net>."""
    pretrained: bool = False
    """Start from published weights (ImageNet or Kinetics)."""
    weights: str | None = None
    """Start from these weights: a zoo name, a file or hf://user/name."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout before the classifier."""
    drop_path: float = Field(0.0, ge=0, lt=1)
    """Stochastic depth of the last block; earlier blocks have less."""
    causal: bool = False
    """No frame reads later ones, for streams: TSM, TEA and ViT."""

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.pretrained and self.weights is not None:
            raise ValueError("model.pretrained and model.weights exclude each other; drop one")
        return self


class DataConfig(Section):
    """Videos, views and augmentation."""

    train: str = "train.csv"
    """Training annotations under root: list, csv, class folders."""
    val: str = "val.csv"
    """Validation annotations under root: list, csv, class folders."""
    root: str = "data"
    """Folder of the annotations and of the paths in them."""
    labels: str = "single"
    """single; multi: any number, column labels; characters or words of the column text."""
    format: Literal["video", "store"] = "video"
    """Read the files in the annotations, or a clip store made from them."""
    store: str = "store"
    """Clip store: folder under root, or URL (https://…, s3://…)."""
    store_cache_gib: float | None = Field(None, ge=0)
    """Disk for a store at a URL, GiB; what exceeds it is read anew every epoch; null: all."""
    classes: str | None = None
    """File with one class name per line; null: from train."""
    frame_pattern: str | None = None
    """File names in a frame folder, e.g. {:05d}.jpg; * is any number, as in *-color.png."""
    decoder: Literal["auto", "pyav", "decord"] = "auto"
    """Video decoder; auto reads every format, decord refuses unsafe files."""
    test_frames: list[Count] = Field([4, 6, 8, 12, 16], min_length=1)
    """Frame counts of the validation, in addition to the trained ones."""
    sampling: Literal["segment", "interval", "dense"] = "segment"
    """Frame sampling."""
    span: int = Field(0, ge=0)
    """Frames of a video that a clip spans; shorter ones hold their last frame; 0: all."""
    nested: bool = False
    """Smaller views are subsets of the largest: fewer decoded frames."""
    crop: int = Field(224, ge=1)
    """Side of the network input, px."""
    resize: int = Field(256, ge=1)
    """Short side before the test crop, px."""
    test_protocol: str = "1x1"
    """Clips x crops per video in validation and tests; 1 or 3 crops."""
    crop_mode: Literal["multiscale", "resized", "scale_jitter"] = "multiscale"
    """Random crop of TSN, Inception or SlowFast."""
    scales: list[Share] = Field([1.0, 0.875, 0.75, 0.66])
    """multiscale: crop side / short side."""
    area: list[Share] = Field([0.08, 1.0])
    """resized: range of the crop's share of the frame."""
    aspect: list[Positive] = Field([0.75, 1.3333])
    """resized: range of width / height."""
    jitter_scales: list[Count] = Field([256, 320])
    """scale_jitter: range of the short side, px."""
    flip: Literal["none", "random", "swap"] = "none"
    """Horizontal flip; swap exchanges the labels of flip_pairs."""
    flip_pairs: list[list[str]] = Field([])
    """Class names that a flip exchanges, for flip=swap."""
    color_jitter: list[NotNegative] = Field([0.0, 0.0, 0.0, 0.0])
    """Strength of brightness, contrast, saturation, hue; 0: off."""
    randaugment: str | None = None
    """timm policy, e.g. rand-m7-n4-mstd0.5-inc1; null: off."""
    random_erasing: float = Field(0.0, ge=0, le=1)
    """Probability of random erasing."""
    mean: list[NotNegative] = Field([0.485, 0.456, 0.406])
    """Mean of the normalization, in the order of color."""
    std: list[Positive] = Field([0.229, 0.224, 0.225])
    """Standard deviation of the normalization."""
    color: Literal["rgb", "bgr"] = "rgb"
    """Channel order of the network's input."""
    workers: int = Field(4, ge=0)
    """Loader processes per training process; 0: load in the process."""
    timeout: float = Field(600.0, ge=0, le=30 * 86400)
    """Seconds to wait for a batch before the run ends with an error; 0: no limit."""
    cache_gib: float = Field(0.0, ge=0)
    """Memory per loader process for decoded videos, GiB."""
    on_error: Literal["fail", "skip"] = "fail"
    """Unreadable video: fail, or skip and count."""

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        defaults = type(self).model_fields
        problems = [
            f"data.{name} needs data.crop_mode={mode}; crop_mode is {self.crop_mode}"
            for name, mode in CROP_OPTIONS.items()
            if mode != self.crop_mode and getattr(self, name) != defaults[name].default
        ]
        if self.resize < self.crop:
            problems.append(
                f"data.resize is {self.resize}; it must be at least data.crop, {self.crop}"
            )
        if (self.flip == "swap") != bool(self.flip_pairs):
            problems.append("data.flip=swap and data.flip_pairs need each other; give both")
        if problems:
            raise ValueError("\n".join(problems))
        return self


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(50, ge=1)
    """Passes over the training videos."""
    batch_size: int = Field(32, ge=1)
    """Samples per optimizer step, over all processes and gradient accumulation."""
    repeated_aug: int = Field(1, ge=1)
    """Copies of each video in a batch (repeated augmentation)."""
    group_videos: bool = False
    """Parts (start, end) of one file follow each other: hard negatives of task contrastive."""
    mixup: float = Field(0.0, ge=0)
    """Alpha of mixup; 0: off; with cutmix, one of them per batch."""
    cutmix: float = Field(0.0, ge=0)
    """Alpha of CutMix; 0: off."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing."""
    class_weights: Literal["none", "balanced", "sqrt"] = "none"
    """Weights of the classes in the loss, from their numbers of videos."""
    grad_accum_steps: int = Field(1, ge=1)
    """Micro-batches per optimizer step; BatchNorm sees one at a time."""
    views: Literal["together", "sequential"] = "together"
    """Views in one pass; sequential: one by one, less memory."""
    activation_checkpointing: bool = False
    """Recompute residual blocks in the backward pass: less memory, more time."""
    compile: bool = False
    """torch.compile, one graph per frame count."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the forward pass (autocast)."""
    clip_grad_norm: float | None = Field(20.0, gt=0)
    """Maximum gradient norm; null: no clipping."""
    freeze: list[str] = Field([])
    """Parts that do not train: head_only (all but the head), norms, or patterns of names, e.g.
    [norms, net.layer1]."""
    sync_bn: bool = False
    """BatchNorm statistics over all processes, of one micro-batch each."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Moving average of weights and statistics; 0: off."""
    validate_epochs: int = Field(1, ge=1)
    """Epochs between validations; the last epoch always validates."""
    patience: int = Field(0, ge=0)
    """Early stopping: validations without a better mean that end the run; 0: off."""
    save_steps: int = Field(0, ge=0)
    """Steps between checkpoints; 0: at the end of epochs only."""
    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints to keep, in addition to best.pt."""
    deterministic: bool = False
    """Deterministic algorithms only; slower."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of initialization, order, sampling and augmentation."""

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        problems = {
            "train.sync_bn and train.freeze=[norms] exclude each other; drop one": (
                self.sync_bn and {"norms", "head_only"} & {*self.freeze}
            ),
            "train.compile and train.sync_bn exclude each other, as a compiled graph cannot "
            "contain collectives; drop one": self.compile and self.sync_bn,
        }
        if any(problems.values()):
            raise ValueError("\n".join(text for text, wrong in problems.items() if wrong))
        return self


class OptimConfig(Section):
    """Optimizer and schedule."""

    name: Literal["sgd", "adamw"] = "sgd"
    """Optimizer; sgd has no Nesterov momentum."""
    lr: float = Field(0.01, gt=0)
    """Learning rate, for train.batch_size or base_batch_size samples."""
    base_batch_size: int | None = Field(None, ge=1)
    """Batch size that lr belongs to; lr scales to train.batch_size; null: as is."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of sgd."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay; biases and norms have none."""
    groups: Literal["tsm", "standard"] = "tsm"
    """tsm: head weight lr x5, head bias x10, biases x2; standard: one lr."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Factor of lr per block towards the input; 1: off."""
    schedule: Literal["step", "cosine"] = "step"
    """Learning-rate schedule."""
    milestones: list[NotNegative] = Field([20.0, 40.0])
    """Epochs at which step multiplies lr by gamma."""
    gamma: float = Field(0.1, ge=0)
    """Factor of the step schedule."""
    final_lr: float = Field(0.0, ge=0)
    """Learning rate at the end of the cosine schedule, scaled as lr is."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Epochs of linear warm-up from lr / 100."""


class LogConfig(Section):
    """Output of a run."""

    output: str | None = None
    """Run folder; null: runs/CONFIG."""
    interval: int = Field(50, ge=1)
    """Optimizer steps between log lines; an epoch with fewer has one at its end."""
    wandb: Literal["disabled", "online", "offline"] = "disabled"
    """Weights & Biases."""
    project: str = "ffn"
    """Project of Weights & Biases."""
    tensorboard: bool = False
    """Write TensorBoard event files to the run folder."""


OptionsOfTask = TypeVar("OptionsOfTask", bound=TaskOptions)


class Config(Section, Generic[OptionsOfTask]):
    """All options. The section ``task`` has the options of the task that ``task.name`` names."""

    imports: list[str] = Field([])
    """Your own packages to import first."""
    model: ModelConfig = ModelConfig()
    task: OptionsOfTask = Field(default_factory=FlexibleOptions)
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _check(self) -> Config:
        ends = chain(*self.task.ranges)
        largest = max([*self.task.frames, *ends, *self.data.test_frames], default=0)
        problems = {
            f"data.sampling is dense, whose clips have at most {WINDOW} frames; {largest} are "
            "asked for. Use data.sampling=segment or fewer frames": (
                self.data.sampling == "dense" and largest > WINDOW
            ),
            "train.compile and data.on_error=skip exclude each other, as a batch without its "
            "unreadable videos would need another graph; drop one": (
                self.train.compile and self.data.on_error == "skip"
            ),
        }
        if any(problems.values()):
            raise ValueError("\n".join(text for text, wrong in problems.items() if wrong))
        return self
