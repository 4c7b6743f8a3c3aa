"""Does a run look like one that has worked? What does not is said once, at the start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from ffn.engine.optim import scaled_lr
from ffn.engine.options import Config, Flip

FEW_CLIPS = 8  # below this, statistics of a batch are poor (Wu and He 2018, figure 1)
FAR = 4.0  # times more or less than the recipe's rate, scaled to the batch
LITTLE = 0.95  # share of the parameters that start weights should bring


@dataclass(frozen=True)
class Recipe:
    """What a family was published with (FFN, CVPR 2023, and the authors' configs).

    Attributes:
        optimiser: its name.
        lr: learning rate.
        batch_size: videos per step that the rate belongs to.
    """

    optimiser: str
    lr: float
    batch_size: int


RECIPES = {
    "tsm": Recipe("sgd", 0.01, 32),
    "tea": Recipe("sgd", 0.02, 32),
    "slowfast": Recipe("sgd", 0.03, 16),
    "uniformer": Recipe("adamw", 2e-4, 32),
}


@dataclass(frozen=True)
class Start:
    """Weights that a run starts from.

    Attributes:
        name: of the weights.
        share: of the network's parameters that they brought, 0 to 1.
        classes: their class names; None if they do not tell.
        new_head: the classifier starts anew.
    """

    name: str
    share: float
    classes: Sequence[str] | None
    new_head: bool


def warnings(
    config: Config,
    model: nn.Module,
    classes: Sequence[str],
    *,
    clips_per_norm: int,
    start: Start | None = None,
) -> list[str]:
    """What about a run is unlike what is known to work, each with what to try.

    Args:
        config: its options.
        model: its network.
        classes: class names of its data.
        clips_per_norm: clips whose statistics a BatchNorm sees in a step.
        start: the weights that it starts from.
    """
    found = [*_rate(config), *_mirror(config, classes), *_without_effect(config, model)]
    if not config.train.freeze_bn:
        found += _statistics(model, clips_per_norm)
    if start is not None:
        found += _beginning(start, classes)
    return found


def _rate(config: Config) -> Iterator[str]:
    name = config.model.name
    recipe = RECIPES.get(re.split(r"[_.]", name)[0])
    if recipe is None or name.endswith("_tiny") or config.optim.name.value != recipe.optimiser:
        return  # nobody published one
    videos = config.train.batch_size
    rate = scaled_lr(config.optim.lr, videos, config.optim.base_batch_size)
    expected = scaled_lr(recipe.lr, videos, recipe.batch_size)
    if not 1 / FAR <= rate / expected <= FAR:
        yield (
            f"the learning rate is {rate:g} for {videos} samples per step; {name} was published "
            f"with {recipe.lr:g} for {recipe.batch_size}, which is {expected:g} for {videos}: "
            f"optim.lr={recipe.lr:g} with optim.base_batch_size={recipe.batch_size} scales it"
        )


def _mirror(config: Config, classes: Sequence[str]) -> Iterator[str]:
    if config.data.flip is not Flip.random:
        return
    sided = [name for name in classes if re.search(r"(?i)(?<![a-z])(left|right)(?![a-z])", name)]
    if sided:
        yield (
            f"data.flip=random mirrors clips of {len(sided)} classes whose names tell left from "
            f"right, as {sided[0]!r}; data.flip=swap exchanges their labels, data.flip=none leaves "
            "clips as they are"
        )


def _without_effect(config: Config, model: nn.Module) -> Iterator[str]:
    if not _has_batch_norms(model):
        for option in ("sync_bn", "precise_bn"):
            if getattr(config.train, option):
                yield f"train.{option} has no effect: {config.model.name} has no BatchNorm"


def _has_batch_norms(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def _statistics(model: nn.Module, clips: int) -> Iterator[str]:
    if _has_batch_norms(model) and clips < FEW_CLIPS:
        yield (
            f"a BatchNorm sees {clips} clips at a time; below {FEW_CLIPS} its statistics are poor. "
            "More fit with train.views=sequential or train.activation_checkpointing=true, "
            "train.sync_bn=true joins the processes, train.freeze_bn=true keeps the start "
            "weights' statistics"
        )


def _beginning(start: Start, classes: Sequence[str]) -> Iterator[str]:
    if start.share < LITTLE:
        yield f"{start.name} brought {start.share:.0%} of the parameters; the others start anew"
    if start.new_head or start.classes is None:
        return
    pairs = list(zip(start.classes, classes, strict=True))
    moved = [number for number, (there, here) in enumerate(pairs) if there != here]
    if moved:
        there, here = pairs[moved[0]]
        order = "order" if sorted(start.classes) == sorted(classes) else "names"
        yield (
            f"the classes have other {order} than those of {start.name}, whose classifier the run "
            f"starts from: {len(moved)} of {len(pairs)} differ, the first is class {moved[0]}, "
            f"{here!r} here and {there!r} there; data.classes=FILE sets their order"
        )
