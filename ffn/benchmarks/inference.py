"""Benchmark of inference: the network as trained, and each runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ffn.benchmarks.timing import (
    Comparison,
    Variant,
    compare,
    interleave,
    model_bytes,
)
from ffn.core import FrameFlexible
from ffn.devices import has_bf16
from ffn.evaluation.cost import peak_memory
from ffn.export import InferenceRunner
from ffn.export.runtimes import FILES, available

REFERENCE = "unfused"


def compare_inference(
    name: str,
    model: FrameFlexible,
    *,
    frames: Sequence[int],
    batch_size: int,
    size: int,
    compiled: bool,
    rounds: int,
) -> Iterator[Comparison]:
    """Compare the forward passes of a frame-flexible network in several forms.

    Arguments are the options of ``ffn benchmark infer``; the model is in eval mode. Yields one
    comparison per frame count.
    """
    device = next(model.parameters()).device
    for count in sorted(set(frames)):
        clips = torch.randn(batch_size, 3, count, size, size, device=device)
        options = forms(device, compiled=compiled)
        networks = {form: InferenceRunner(model, **given) for form, given in options.items()}
        calls = {form: partial(run, clips) for form, run in networks.items()}
        with torch.inference_mode():
            for call in calls.values():
                call()  # builds the network
            peaks = {
                form: model_bytes(model) + peak_memory(call, device)
                for form, call in calls.items()
                if networks[form].runtime not in FILES  # the others allocate outside torch
            }
            seconds = interleave(calls, rounds=rounds, device=device)
        subnet = f"{count} frames on sub-network {model.select(count)}"
        title = f"{name}, {subnet}, batches of {batch_size} at {size} px"
        variants = [Variant(form, seconds[form], peaks.get(form)) for form in calls]
        yield compare(title, batch_size, REFERENCE, variants)


def forms(device: torch.device, *, compiled: bool) -> dict[str, dict[str, Any]]:
    """The forms that run on a device: name -> arguments of ``ffn.export.InferenceRunner``."""
    found = {REFERENCE: {"runtime": REFERENCE, "precision": "fp32"}}
    for runtime in available(device.type):
        if runtime == "compile" and not compiled:
            continue
        found[runtime] = {"runtime": runtime, "precision": "fp32"}
        if runtime != "onnxruntime" and (device.type == "cuda" or has_bf16()):
            found[f"{runtime}, bf16"] = {"runtime": runtime, "precision": "bf16"}
    return found
