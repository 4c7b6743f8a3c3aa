"""What ``tools/benchmark.py`` compares: steps of training, forwards, samples read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ffn.core import convert, extract, nearest

if TYPE_CHECKING:  # what else there is of ffn is imported where it is used: --help is quick
    from ffn.benchmarks.timing import Comparison


def compare_training(given: argparse.Namespace, device: torch.device) -> list[Comparison]:
    """Steps of frame-flexible training in ways that save memory or time, and of plain training.

    Views together and in sequence, each also with blocks that run again in the backward, and with
    ``--compile`` compiled. A step is what the training loop does with a batch that lies ready:
    forward, backward, clipping of gradients, optimiser.
    """
    from ffn.benchmarks.timing import Variant, compare, in_sequence, interleave, peak_memory

    counts = _views(given.frames)
    side = given.size
    clips = {
        t: torch.randn(given.batch_size, 3, t, side, side, device=device)  # (B, C, T, H, W)
        for t in counts
    }
    label = torch.randint(given.num_classes, (given.batch_size,), device=device)
    batch = {"clips": clips, "label": label}

    networks = {"": _Training(given, "flexible", counts, device)}
    networks[", recomputed"] = _Training(given, "flexible", counts, device, recompute=True)
    if given.compile:
        networks[", compiled"] = _Training(given, "flexible", counts, device, compile_it=True)
    plain = {t: _Training(given, "plain", [t], device) for t in counts}
    calls, held = {}, {}
    for how, network in networks.items():
        calls["together" + how] = lambda n=network: n.step(batch)
        calls["sequential" + how] = lambda n=network: n.step(batch, sequential=True)
    flexible = list(calls)
    calls |= {f"plain {t}": lambda t=t: plain[t].step(batch) for t in counts}
    seconds = interleave(calls, rounds=given.rounds, device=device)
    for how, network in networks.items():
        for views in ("together", "sequential"):
            held[views + how] = network.held() + _bytes(clips.values())
    held |= {f"plain {t}": plain[t].held() + _bytes([clips[t]]) for t in counts}
    variants = [
        Variant(name, given.batch_size, seconds[name], held[name] + peak_memory(call, device))
        for name, call in calls.items()
    ]
    every = f"plain {' + '.join(map(str, counts))}"
    variants.append(in_sequence(every, variants[len(flexible) :]))
    pairs = [(name, "together") for name in flexible[1:]]
    for over in (f"plain {counts[-1]}", every):
        pairs += [("together", over), ("sequential", over)]
    title = f"{given.model}, views {_joined(counts)}, batches of {given.batch_size} at {side} px"
    return [compare(title, variants, pairs)]


class _Training:
    """One network in training, as ``ffn train`` builds it from a config."""

    def __init__(
        self,
        given: argparse.Namespace,
        task: str,
        frames: Sequence[int],
        device: torch.device,
        *,
        recompute: bool = False,
        compile_it: bool = False,
    ) -> None:
        from ffn.engine import build
        from ffn.engine.activation_checkpointing import checkpoint_blocks
        from ffn.engine.compile import compile_network
        from ffn.engine.config import load_config

        options = [f"model.name={given.model}", f"task.name={task}", f"task.frames={list(frames)}"]
        config = load_config(None, options)
        self.device, self.precision = device, given.precision
        self.clip_norm = config.train.clip_grad_norm
        self.model = build.build_model(config, given.num_classes).to(device).train()
        if recompute:
            checkpoint_blocks(self.model)
        if compile_it:
            compile_network(self.model)
        self.task = build.build_task(config, self.model).train()
        self.optimiser = build.build_optimiser(config, self.model)
        self.scaler = torch.amp.GradScaler(device.type, enabled=given.precision == "fp16")

    def step(self, batch: dict[str, Any], *, sequential: bool = False) -> None:
        """One optimiser step; the gradients are gone after it."""
        from ffn.engine.tasks import backward_each_view

        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        autocast = torch.autocast(self.device.type, dtype, enabled=self.precision != "fp32")
        if sequential:
            backward_each_view(self.task, batch, 1.0, self.scaler, autocast)
        else:
            with autocast:
                loss = self.task(batch)["loss"]
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimiser)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)

    def held(self) -> int:
        """Bytes that stay between steps: weights, statistics, the optimiser's state."""
        states = self.optimiser.state.values()
        state = [v for values in states for v in values.values() if torch.is_tensor(v)]
        return _model_bytes(self.model) + _bytes(state)


def compare_inference(given: argparse.Namespace, device: torch.device) -> list[Comparison]:
    """Forwards of a frame-flexible network, of its sub-network taken out, of a plain network."""
    from ffn.benchmarks.timing import Variant, compare, interleave, peak_memory
    from ffn.evaluation import inference
    from ffn.zoo import create_model

    plain = create_model(given.model, num_classes=given.num_classes).to(device).eval()
    flexible = convert(plain, given.trained_frames)
    comparisons = []
    for frames in sorted(set(given.frames or given.trained_frames)):
        active = nearest(frames, flexible.trained_frames)
        clip = torch.randn(given.batch_size, 3, frames, given.size, given.size, device=device)
        models = {"flexible": flexible, "extracted": extract(flexible, active), "plain": plain}
        calls: dict[str, Callable[[], Tensor]] = {
            name: lambda model=model, clip=clip: model(clip) for name, model in models.items()
        }
        with inference(device, given.precision):
            seconds = interleave(calls, rounds=given.rounds, device=device)
            peaks = {name: peak_memory(call, device) for name, call in calls.items()}
        variants = [
            Variant(
                name,
                given.batch_size,
                seconds[name],
                _model_bytes(model) + _bytes([clip]) + peaks[name],
            )
            for name, model in models.items()
        ]
        pairs = [("flexible", "extracted"), ("flexible", "plain"), ("extracted", "plain")]
        title = f"{given.model}, {frames} frames on sub-network {active}, "
        title += f"batches of {given.batch_size} at {given.size} px"
        comparisons.append(compare(title, variants, pairs))
    return comparisons


def _views(frames: Sequence[int]) -> list[int]:
    counts = sorted(set(frames))
    if len(counts) < 2:
        raise ValueError(f"--frames is {_joined(counts)}; give two or more counts, as 4 8 16")
    return counts


def _model_bytes(model: nn.Module) -> int:
    return _bytes([*model.parameters(), *model.buffers()])


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _joined(counts: Iterable[int]) -> str:
    return ", ".join(map(str, counts))
