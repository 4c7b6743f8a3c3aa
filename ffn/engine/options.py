"""All options of training and testing, with defaults, meanings, units and ranges.

Those of the tasks are in :mod:`ffn.engine.task_options`.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from ffn.engine.section import Count, Section
from ffn.engine.task_options import FlexibleOptions, TaskOptions
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


def divisible(batch_size: int, share: int, reason: str) -> str:
    """Message about a batch size that is no multiple of ``share``, with the closest that are."""
    lower = batch_size // share * share
    use = f"{lower} or {lower + share}" if lower else f"{share}"
    return (
        f"train.batch_size is {batch_size}; it must be divisible by {share} ({reason}). Use {use}"
    )


class ModelConfig(Section):
    """The network."""

    name: str = Field(
        "tsm_r50", description="registered model, tsm.<timm CNN> or tea.<timm Res2Net>"
    )
    pretrained: bool = Field(
        False, description="start from published weights (ImageNet or Kinetics)"
    )
    weights: str | None = Field(
        None, description="start from these weights: a zoo name, a file or hf://user/name"
    )
    dropout: float = Field(0.5, description="dropout before the classifier", ge=0, lt=1)
    drop_path: float = Field(
        0.0, description="stochastic depth of the last block; earlier blocks have less", ge=0, lt=1
    )

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.pretrained and self.weights is not None:
            raise ValueError("model.pretrained and model.weights exclude each other; drop one")
        return self


class DataConfig(Section):
    """Videos, views and augmentation."""

    train: str = Field(
        "train.csv", description="training annotations under root: list, csv, class folders"
    )
    val: str = Field(
        "val.csv", description="validation annotations under root: list, csv, class folders"
    )
    root: str = Field("data", description="folder of the annotations and of the paths in them")
    labels: Literal["single", "multi"] = Field(
        "single", description="labels per video; multi: any number, a csv with the column labels"
    )
    format: Literal["video", "store"] = Field(
        "video", description="read the files in the annotations, or a clip store made from them"
    )
    store: str = Field(
        "store", description="clip store: folder under root, or URL (https://…, s3://…)"
    )
    classes: str | None = Field(
        None, description="file with one class name per line; null: from train"
    )
    frame_pattern: str | None = Field(
        None, description="file names in a frame folder, e.g. {:05d}.jpg"
    )
    decoder: Literal["auto", "pyav", "decord"] = Field(
        "auto", description="video decoder; auto reads every format, decord refuses unsafe files"
    )
    test_frames: list[Count] = Field(
        [4, 6, 8, 12, 16],
        description="frame counts of the validation, in addition to the trained ones",
        min_length=1,
    )
    sampling: Literal["segment", "interval", "dense"] = Field(
        "segment", description="frame sampling"
    )
    nested: bool = Field(
        False, description="smaller views are subsets of the largest: fewer decoded frames"
    )
    crop: int = Field(224, description="side of the network input, px", ge=1)
    resize: int = Field(256, description="short side before the test crop, px", ge=1)
    test_protocol: str = Field(
        "1x1", description="clips x crops per video in validation and tests; 1 or 3 crops"
    )
    crop_mode: Literal["multiscale", "resized", "scale_jitter"] = Field(
        "multiscale", description="random crop of TSN, Inception or SlowFast"
    )
    scales: list[Share] = Field(
        [1.0, 0.875, 0.75, 0.66], description="multiscale: crop side / short side"
    )
    area: list[Share] = Field(
        [0.08, 1.0], description="resized: range of the crop's share of the frame"
    )
    aspect: list[Positive] = Field([0.75, 1.3333], description="resized: range of width / height")
    jitter_scales: list[Count] = Field(
        [256, 320], description="scale_jitter: range of the short side, px"
    )
    flip: Literal["none", "random", "swap"] = Field(
        "none", description="horizontal flip; swap exchanges the labels of flip_pairs"
    )
    flip_pairs: list[list[str]] = Field(
        [], description="class names that a flip exchanges, for flip=swap"
    )
    color_jitter: list[NotNegative] = Field(
        [0.0, 0.0, 0.0, 0.0],
        description="strength of brightness, contrast, saturation, hue; 0: off",
    )
    randaugment: str | None = Field(
        None, description="timm policy, e.g. rand-m7-n4-mstd0.5-inc1; null: off"
    )
    random_erasing: float = Field(0.0, description="probability of random erasing", ge=0, le=1)
    mean: list[NotNegative] = Field(
        [0.485, 0.456, 0.406], description="mean of the normalization, in the order of color"
    )
    std: list[Positive] = Field(
        [0.229, 0.224, 0.225], description="standard deviation of the normalization"
    )
    color: Literal["rgb", "bgr"] = Field("rgb", description="channel order of the network's input")
    workers: int = Field(
        4, description="loader processes per training process; 0: load in the process", ge=0
    )
    timeout: float = Field(
        600.0,
        description="seconds to wait for a batch before the run ends with an error; 0: no limit",
        ge=0,
        le=30 * 86400,
    )
    cache_gib: float = Field(
        0.0, description="memory per loader process for decoded videos, GiB", ge=0
    )
    on_error: Literal["fail", "skip"] = Field(
        "fail", description="unreadable video: fail, or skip and count"
    )

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

    epochs: int = Field(50, description="passes over the training videos", ge=1)
    batch_size: int = Field(
        32,
        description="samples per optimizer step, over all processes and gradient accumulation",
        ge=1,
    )
    repeated_aug: int = Field(
        1, description="copies of each video in a batch (repeated augmentation)", ge=1
    )
    mixup: float = Field(
        0.0, description="alpha of mixup; 0: off; with cutmix, one of them per batch", ge=0
    )
    cutmix: float = Field(0.0, description="alpha of CutMix; 0: off", ge=0)
    label_smoothing: float = Field(0.0, description="label smoothing", ge=0, lt=1)
    class_weights: Literal["none", "balanced", "sqrt"] = Field(
        "none", description="weights of the classes in the loss, from their numbers of videos"
    )
    grad_accum_steps: int = Field(
        1, description="micro-batches per optimizer step; BatchNorm sees one at a time", ge=1
    )
    views: Literal["together", "sequential"] = Field(
        "together", description="views in one pass; sequential: one by one, less memory"
    )
    activation_checkpointing: bool = Field(
        False,
        description="recompute residual blocks in the backward pass: less memory, more time",
    )
    compile: bool = Field(False, description="torch.compile, one graph per frame count")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="precision of the forward pass (autocast)"
    )
    clip_grad_norm: float | None = Field(
        20.0, description="maximum gradient norm; null: no clipping", gt=0
    )
    freeze: list[str] = Field(
        [],
        description="parts that do not train: head_only, norms, stem, blocks:N (the stem and the "
        "first N residual blocks), or name patterns, e.g. [norms, net.layer1]",
    )
    sync_bn: bool = Field(
        False, description="BatchNorm statistics over all processes, of one micro-batch each"
    )
    precise_bn: int = Field(
        0,
        description="micro-batches for exact BatchNorm statistics before a validation; 0: off",
        ge=0,
    )
    ema_decay: float = Field(
        0.0, description="moving average of weights and statistics; 0: off", ge=0, lt=1
    )
    validate_epochs: int = Field(
        1, description="epochs between validations; the last epoch always validates", ge=1
    )
    patience: int = Field(
        0,
        description="early stopping: validations without a better mean that end the run; 0: off",
        ge=0,
    )
    save_steps: int = Field(
        0, description="steps between checkpoints; 0: at the end of epochs only", ge=0
    )
    keep_checkpoints: int = Field(
        2, description="newest checkpoints to keep, in addition to best.pt", ge=1
    )
    deterministic: bool = Field(False, description="deterministic algorithms only; slower")
    seed: int = Field(
        0,
        description="seed of initialization, order, sampling and augmentation",
        ge=0,
        lt=2**32,
    )

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        share = self.repeated_aug * self.grad_accum_steps
        problems = {
            divisible(self.batch_size, share, "grad_accum_steps x repeated_aug"): (
                self.batch_size % share
            ),
            "train.precise_bn and train.freeze=[norms] exclude each other; drop one": (
                self.precise_bn and {"norms", "head_only"} & {*self.freeze}
            ),
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

    name: Literal["sgd", "adamw"] = Field(
        "sgd", description="optimizer; sgd has no Nesterov momentum"
    )
    lr: float = Field(
        0.01, description="learning rate, for train.batch_size or base_batch_size samples", gt=0
    )
    base_batch_size: int | None = Field(
        None,
        description="batch size that lr belongs to; lr scales to train.batch_size; null: as is",
        ge=1,
    )
    momentum: float = Field(0.9, description="momentum of sgd", ge=0, lt=1)
    weight_decay: float = Field(5e-4, description="weight decay; biases and norms have none", ge=0)
    groups: Literal["tsm", "standard"] = Field(
        "tsm", description="tsm: head weight lr x5, head bias x10, biases x2; standard: one lr"
    )
    layer_decay: float = Field(
        1.0, description="factor of lr per block towards the input; 1: off", gt=0, le=1
    )
    schedule: Literal["step", "cosine"] = Field("step", description="learning-rate schedule")
    milestones: list[NotNegative] = Field(
        [20.0, 40.0], description="epochs at which step multiplies lr by gamma"
    )
    gamma: float = Field(0.1, description="factor of the step schedule", ge=0)
    final_lr: float = Field(
        0.0, description="lr at the end of the cosine schedule, scaled as lr is", ge=0
    )
    warmup_epochs: float = Field(0.0, description="epochs of linear warm-up from lr / 100", ge=0)


class LogConfig(Section):
    """Output of a run."""

    output: str | None = Field(
        None,
        description="run folder; null: runs/CONFIG, or runs/CONFIG_2, … if that has another run",
    )
    interval: int = Field(
        50,
        description="optimizer steps between log lines; an epoch with fewer has one at its end",
        ge=1,
    )
    wandb: Literal["disabled", "online", "offline"] = Field(
        "disabled", description="Weights & Biases"
    )
    project: str = Field("ffn", description="wandb project")
    tensorboard: bool = Field(False, description="write TensorBoard event files to the run folder")


OptionsOfTask = TypeVar("OptionsOfTask", bound=TaskOptions)


class Config(Section, Generic[OptionsOfTask]):
    """All options. The section ``task`` has the options of the task that ``task.name`` names."""

    imports: list[str] = Field([], description="your own packages to import first")
    model: ModelConfig = ModelConfig()
    task: OptionsOfTask = Field(default_factory=FlexibleOptions)
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _check(self) -> Config:
        largest = max([*self.task.frames, *self.data.test_frames], default=0)
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
