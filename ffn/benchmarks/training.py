"""Benchmark of training steps: options that save memory or time, and plain training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any

import torch

from ffn.benchmarks.timing import (
    Comparison,
    Variant,
    compare,
    in_sequence,
    interleave,
    model_bytes,
    tensor_bytes,
)
from ffn.engine.train_step import TrainStep
from ffn.evaluation.cost import peak_memory

LR = 1e-3  # learning rate of the timed steps


def compare_training(
    model: str,
    frames: Sequence[int],
    build_step: Callable[[str, Sequence[int], Sequence[str]], TrainStep],
    *,
    batch_size: int,
    size: int,
    num_classes: int,
    precision: str,
    compiled: bool,
    rounds: int,
    device: torch.device,
) -> Comparison:
    """Compare training steps with all views together and in sequence, and steps of plain training.

    A step is that of a training run, on a batch that is already on the device: normalization,
    forward, backward, gradient clipping, the check for finite numbers, optimizer.

    Arguments are the options of ``ffn benchmark train``; ``build_step`` makes a step from the name
    of a task, its frame counts, and further options of a config.

    Raises:
        ValueError: fewer than two frame counts, or an unknown model.
    """
    views = sorted(set(frames))
    shown = ", ".join(map(str, views))
    if len(views) < 2:
        raise ValueError(f"--frames is {shown}; give two or more frame counts, e.g. 4 8 16")
    batch = _batch(views, batch_size, size, num_classes, device)
    clips = batch["clips"]
    flexible = _variants(compiled, precision)
    steps = {name: build_step("flexible", views, more) for name, more in flexible.items()}
    options = [f"train.precision={precision}"]
    steps |= {f"plain {t}": build_step("plain", [t], options) for t in views}
    calls = {name: _call(step, batch) for name, step in steps.items()}
    seconds = interleave(calls, rounds=rounds, device=device)
    variants = []
    for name, step in steps.items():
        used = clips.values() if name in flexible else [clips[int(name.removeprefix("plain "))]]
        peak = held_bytes(step) + tensor_bytes(used) + peak_memory(calls[name], device)
        variants.append(Variant(name, seconds[name], peak))
    every = f"plain {' + '.join(map(str, views))}"
    variants.append(in_sequence(every, variants[len(flexible) :]))
    title = f"{model}, views {shown}, batches of {batch_size} at {size} px"
    return compare(title, batch_size, every, variants)


def _variants(compiled: bool, precision: str) -> dict[str, list[str]]:
    """Variants of frame-flexible training: name -> options of the config."""
    features = {"": [], ", checkpointed": ["train.activation_checkpointing=true"]}
    if compiled:
        features[", compiled"] = ["train.compile=true"]
    return {
        views + name: [f"train.views={views}", f"train.precision={precision}", *options]
        for name, options in features.items()
        for views in ("together", "sequential")
    }


def _batch(
    views: Sequence[int], batch_size: int, size: int, num_classes: int, device: torch.device
) -> dict[str, Any]:
    """A batch as the training loader returns it, of random pixels and labels, on a device."""
    shape = (size, size)
    return {
        "clips": {
            t: torch.randint(256, (batch_size, 3, t, *shape), dtype=torch.uint8, device=device)
            for t in views
        },
        "label": torch.randint(num_classes, (batch_size,), device=device),
        "index": torch.arange(batch_size),
        "skipped": [],
    }


def _call(step: TrainStep, batch: dict[str, Any]) -> Callable[[], object]:
    numbers = count()
    return lambda: step.step(repeat(batch), number=next(numbers), lr=LR)


def held_bytes(step: TrainStep) -> int:
    """Memory between steps: parameters, two copies of the buffers, average, optimizer state."""
    average = 0 if step.ema is None else model_bytes(step.ema.module)
    values = (value for state in step.optimizer.state.values() for value in state.values())
    tensors = [*step.model.buffers(), *filter(torch.is_tensor, values)]
    return model_bytes(step.model) + average + tensor_bytes(tensors)
