"""Warnings about settings that differ from published recipes, printed at the start of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from torch import nn

from ffn.engine.freezing import is_frozen
from ffn.engine.optim import scaled_lr

FEW_CLIPS = 8  # batches below this have poor statistics (Wu and He 2018, figure 1)
LR_FACTOR = 4.0  # a learning rate further than this from the recipe's is reported
MIN_SHARE = 0.95  # of the parameters that start weights should contain


@dataclass(frozen=True)
class Recipe:
    """Published hyperparameters of a family (FFN, CVPR 2023, and the authors' configs).

    Attributes:
        optimizer: its name.
        lr: learning rate.
        batch_size: videos per step for this rate.
    """

    optimizer: str
    lr: float
    batch_size: int


RECIPES = {
    "tsm": Recipe("sgd", 0.01, 32),
    "tea": Recipe("sgd", 0.02, 32),
    "slowfast": Recipe("sgd", 0.03, 16),
    "uniformer": Recipe("adamw", 2e-4, 32),
}


def learning_rate_warnings(
    model_name: str, optimizer: str, lr: float, batch_size: int, *, fine_tuning: bool = False
) -> Iterator[str]:
    """A learning rate far from the recipe of the model's family.

    Args:
        model_name: e.g. ``tsm_r50``.
        optimizer: its name.
        lr: rate in use, scaled to the batch.
        batch_size: samples per step.
        fine_tuning: the network starts from trained weights, for which lower rates are usual.
    """
    recipe = RECIPES.get(re.split(r"[_.]", model_name)[0])
    if recipe is None or model_name.endswith("_tiny") or optimizer != recipe.optimizer:
        return  # no published rate
    expected = scaled_lr(recipe.lr, batch_size, recipe.batch_size)
    least = 0.0 if fine_tuning else 1 / LR_FACTOR
    if not least <= lr / expected <= LR_FACTOR:
        yield (
            f"the learning rate is {lr:g} for {batch_size} samples per step; the published one of "
            f"{model_name} is {recipe.lr:g} for {recipe.batch_size}, or {expected:g} for "
            f"{batch_size}. optim.lr={recipe.lr:g} with optim.base_batch_size={recipe.batch_size} "
            "scales it"
        )


def flip_warnings(classes: Sequence[str]) -> Iterator[str]:
    """Class names with "left" or "right", for training with a random horizontal flip."""
    sided = [name for name in classes if re.search(r"(?i)(?<![a-z])(left|right)(?![a-z])", name)]
    if sided:
        yield (
            f"data.flip=random flips clips of {len(sided)} classes with left or right in their "
            f"names, e.g. {sided[0]!r}; data.flip=swap exchanges their labels, data.flip=none does "
            "not flip"
        )


def batch_norm_warnings(
    model: nn.Module,
    *,
    clips: int,
    freeze_bn: bool = False,
    sync_bn: bool = False,
    precise_bn: int = 0,
) -> Iterator[str]:
    """BatchNorm options without effect, and batches too small for its statistics.

    Args:
        model: the network.
        clips: number of clips over which a BatchNorm takes its statistics.
        freeze_bn: ``train.freeze_bn``.
        sync_bn: ``train.sync_bn``.
        precise_bn: ``train.precise_bn``.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        for name, value in (("sync_bn", sync_bn), ("precise_bn", precise_bn)):
            if value:
                yield f"train.{name} has no effect: the model has no BatchNorm"
    elif precise_bn and all(map(is_frozen, norms)):
        yield "train.precise_bn has no effect: all BatchNorms are frozen"
    elif clips < FEW_CLIPS and not freeze_bn:
        yield (
            f"BatchNorm takes its statistics over {clips} clips; below {FEW_CLIPS} they are poor. "
            "train.views=sequential or train.activation_checkpointing=true make room for larger "
            "batches, train.sync_bn=true takes statistics over all processes, "
            "train.freeze=[norms] keeps those of the start weights"
        )


def thread_warnings(threads: int, processes: int, cores: int) -> Iterator[str]:
    """More threads than cores, which makes training several times slower.

    Args:
        threads: of torch in each process.
        processes: of the training on this machine.
        cores: that they may use.
    """
    if processes > 1 and threads * processes > cores:
        yield (
            f"{processes} processes with {threads} threads each share {cores} cores, which is "
            f"slow; start with OMP_NUM_THREADS={max(1, cores // processes)}"
        )


def patience_warnings(patience: int, *, epochs: int, validate_epochs: int) -> Iterator[str]:
    """A patience that cannot end a run before its last validation.

    Args:
        patience: validations without a better score; 0 for no early end.
        epochs: of the run.
        validate_epochs: epochs between validations.
    """
    validations = -(-epochs // validate_epochs)
    if patience >= max(1, validations - 1):  # the first validation is always the best so far
        yield (
            f"train.patience={patience} cannot end this run early: it has {validations} "
            f"validation(s), one every {validate_epochs} epoch(s)"
        )


def warmup_warnings(warmup_epochs: float, epochs: int) -> Iterator[str]:
    """A warm-up that does not end before the run does.

    Args:
        warmup_epochs: epochs of the warm-up.
        epochs: of the run.
    """
    if warmup_epochs >= epochs:
        yield (
            f"optim.warmup_epochs is {warmup_epochs:g} and train.epochs is {epochs}: the whole run "
            "is warm-up and never reaches optim.lr. Lower optim.warmup_epochs"
        )


def optimizer_warnings(
    changed: Set[str],
    *,
    name: str,
    schedule: str,
    milestones: Sequence[float],
    epochs: int,
    linear_probe: bool = False,
) -> Iterator[str]:
    """Options of the optimizer that do nothing, and a step schedule without a step.

    Args:
        changed: options under ``optim`` that do not have their default values.
        name: ``optim.name``.
        schedule: ``optim.schedule``.
        milestones: ``optim.milestones``.
        epochs: of the run.
        linear_probe: ``train.linear_probe``.
    """
    steps = schedule == "step"
    idle = {
        f"optim.schedule={schedule}": ["final_lr"] if steps else ["milestones", "gamma"],
        f"optim.name={name}": [] if name == "sgd" else ["momentum"],
        "train.freeze=[head_only], which trains one layer": ["layer_decay"] if linear_probe else [],
    }
    for reason, options in idle.items():
        for option in changed & set(options):
            yield f"optim.{option} has no effect with {reason}"
    if steps and min(milestones, default=epochs) >= epochs:
        yield (
            f"optim.milestones is {milestones} and train.epochs is {epochs}: the learning rate is "
            "never lowered. Choose epochs below train.epochs, or optim.schedule=cosine"
        )


def mix_warnings(clips: int, **alphas: float) -> Iterator[str]:
    """Options that mix the videos of a micro-batch of one video.

    Args:
        clips: videos of a micro-batch of one process.
        alphas: options of ``train`` by name, and their values; 0: off.
    """
    for name in (name for name, alpha in alphas.items() if alpha and clips == 1):
        yield (
            f"train.{name} has no effect: it mixes the videos of a micro-batch, and each has one. "
            "Raise train.batch_size, or lower train.grad_accum_steps"
        )


def random_feature_warnings(**freezes: bool) -> Iterator[str]:
    """Options that freeze parts of a network without start weights.

    Args:
        freezes: options of ``train`` by name, and whether each freezes something.
    """
    for name in (name for name, given in freezes.items() if given):
        yield (
            f"train.{name} freezes random weights: there are no start weights. Set model.weights, "
            "or model.pretrained=true"
        )


def folded_norm_warnings(name: str, model: nn.Module) -> Iterator[str]:
    """Start weights whose BatchNorms are folded into the convolutions, as for inference.

    Args:
        name: of the weights.
        model: the network that starts from them.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [norm for norm in norms if norm.running_mean is not None]
    training = any(norm.training for norm in tracked)
    if training and all(
        (norm.running_mean == 0).all() and (norm.running_var == 1).all() for norm in tracked
    ):
        yield (
            f"all BatchNorms of {name} have mean 0 and variance 1: they were folded into the "
            "convolutions. Training normalizes with the statistics of its batches, which such "
            "weights do not expect. Start from weights that are not folded, or set "
            "train.freeze=[norms]"
        )


def start_weight_warnings(
    name: str,
    *,
    share: float,
    start_classes: Sequence[str] | None,
    classes: Sequence[str],
) -> Iterator[str]:
    """Start weights that lack parameters, or whose classes differ from those of the data.

    Args:
        name: of the weights.
        share: of the network's parameters that they contain, 0 to 1.
        start_classes: their class names; None if unknown, or if the classifier is new.
        classes: class names of the data.
    """
    if share < MIN_SHARE:
        yield f"{name} contains {share:.0%} of the parameters; the others are initialized"
    if start_classes is None:
        return
    pairs = list(zip(start_classes, classes, strict=True))
    moved = [number for number, (there, here) in enumerate(pairs) if there != here]
    if moved:
        there, here = pairs[moved[0]]
        kind = "order" if sorted(start_classes) == sorted(classes) else "names"
        yield (
            f"the {kind} of the classes differs from that of {name}, whose classifier is kept: "
            f"{len(moved)} of {len(pairs)} differ, the first is class {moved[0]}, {here!r} here "
            f"and {there!r} there. data.classes=FILE sets the order"
        )
