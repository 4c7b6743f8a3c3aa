"""Benchmark of training steps: options that save memory or time, and plain training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ffn.benchmarks.timing import (
    Comparison,
    Variant,
    compare,
    in_sequence,
    interleave,
    model_bytes,
    peak_memory,
    tensor_bytes,
)
from ffn.engine import build
from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.compile import compile_network
from ffn.engine.config import load_config
from ffn.engine.tasks import backward_each_view


def compare_training(
    model: str,
    frames: Sequence[int],
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

    A step runs on a batch that is already on the device: forward, backward, gradient clipping and
    optimiser.

    Args:
        model: name of a model.
        frames: the views, two frame counts or more.
        batch_size: videos per step.
        size: height and width of the clips, pixels.
        num_classes: K.
        precision: "fp32", "bf16" or "fp16".
        compiled: also measure ``torch.compile``.
        rounds: timed steps of each variant.
        device: CPU or CUDA.

    Raises:
        ValueError: fewer than two frame counts, or an unknown model.
    """
    views = sorted(set(frames))
    shown = ", ".join(map(str, views))
    if len(views) < 2:
        raise ValueError(f"--frames is {shown}; give two or more frame counts, as 4 8 16")
    clips = {t: torch.randn(batch_size, 3, t, size, size, device=device) for t in views}
    batch = {"clips": clips, "label": torch.randint(num_classes, (batch_size,), device=device)}

    common = {"num_classes": num_classes, "device": device}
    flexible = _variants(compiled, precision)
    steps = {
        name: build_step(model, "flexible", views, options=options, **common)
        for name, options in flexible.items()
    }
    plain = [f"train.precision={precision}"]
    steps |= {f"plain {t}": build_step(model, "plain", [t], options=plain, **common) for t in views}
    calls = {name: lambda step=step: step(batch) for name, step in steps.items()}
    seconds = interleave(calls, rounds=rounds, device=device)
    variants = []
    for name, step in steps.items():
        used = clips.values() if name in flexible else [clips[int(name.removeprefix("plain "))]]
        peak = step.held_bytes() + tensor_bytes(used) + peak_memory(calls[name], device)
        variants.append(Variant(name, batch_size, seconds[name], peak))
    every = f"plain {' + '.join(map(str, views))}"
    variants.append(in_sequence(every, variants[len(flexible) :]))
    pairs = [(name, "together") for name in flexible if name != "together"]
    for over in (f"plain {views[-1]}", every):
        pairs += [("together", over), ("sequential", over)]
    title = f"{model}, views {shown}, batches of {batch_size} at {size} px"
    return compare(title, variants, pairs)


def _variants(compiled: bool, precision: str) -> dict[str, list[str]]:
    """Variants of frame-flexible training: name -> options of the config.

    "recomputed" is activation checkpointing; result files have this name.
    """
    features = {"": [], ", recomputed": ["train.activation_checkpointing=true"]}
    if compiled:
        features[", compiled"] = ["train.compile=true"]
    return {
        views + name: [f"train.views={views}", f"train.precision={precision}", *options]
        for name, options in features.items()
        for views in ("together", "sequential")
    }


def build_step(
    model: str,
    task: str,
    frames: Sequence[int],
    *,
    num_classes: int,
    device: torch.device,
    options: Sequence[str] = (),
) -> TimedStep:
    """Build the training step that a config describes.

    Args:
        model: name of a model.
        task: name of a task.
        frames: the trained frame counts.
        num_classes: K.
        device: of the network.
        options: other options of the config, as "train.views=sequential".

    Returns:
        A function that trains on a batch ``{"clips": {T: (B, C, T, H, W)}, "label": (B,)}``.
    """
    given = [f"model.name={model}", f"task.name={task}", f"task.frames={list(frames)}"]
    config = load_config(None, [*given, *options])
    network = build.build_model(config, num_classes).to(device).train()
    if config.train.activation_checkpointing:
        checkpoint_blocks(network)
    if config.train.compile:
        compile_network(network)
    return TimedStep(
        build.build_task(config, network).train(),
        build.build_optimiser(config, network),
        precision=config.train.precision.value,
        sequential=config.train.views.value == "sequential",
        clip_grad_norm=config.train.clip_grad_norm,
    )


class TimedStep:
    """A training step: forward, backward, gradient clipping, optimiser."""

    def __init__(
        self,
        task: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        precision: str,
        sequential: bool,
        clip_grad_norm: float,
    ) -> None:
        self.task, self.optimiser = task, optimiser
        self.sequential, self.clip_grad_norm = sequential, clip_grad_norm
        device = next(task.parameters()).device.type
        dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        self.autocast = torch.autocast(device, dtype, enabled=precision != "fp32")
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def __call__(self, batch: dict[str, Any]) -> None:
        """Train on a batch; the gradients are released."""
        if self.sequential:
            backward_each_view(self.task, batch, 1.0, self.scaler, self.autocast)
        else:
            with self.autocast:
                loss = self.task(batch)["loss"]
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimiser)
        nn.utils.clip_grad_norm_(self.task.parameters(), self.clip_grad_norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)

    def held_bytes(self) -> int:
        """Memory kept between steps: parameters, buffers and optimiser state."""
        states = self.optimiser.state.values()
        state: list[Tensor] = [v for s in states for v in s.values() if torch.is_tensor(v)]
        return model_bytes(self.task) + tensor_bytes(state)
