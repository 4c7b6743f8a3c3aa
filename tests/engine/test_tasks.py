"""The losses against the formulas of the paper, written out in float64, and their gradients."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import batch, flexible_task, tiny
from torch import Tensor, nn

from ffn.core import PrivateModules
from ffn.engine.tasks import (
    TASKS,
    FlexibleOptions,
    FlexibleTask,
    PlainTask,
    Task,
    TaskOptions,
    distillation,
    register_task,
)
from ffn.engine.train_step import backward_each_view

COUNTS = (2, 4, 8)
NO_SCALER = torch.amp.GradScaler("cpu", enabled=False)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def cross_entropy(logits: np.ndarray, label: np.ndarray) -> float:
    return -np.mean([log_softmax(logits)[i, k] for i, k in enumerate(label)])


def kl(teacher: np.ndarray, student: np.ndarray) -> float:
    """KL(teacher || student), mean over the batch."""
    p, log_p, log_q = np.exp(log_softmax(teacher)), log_softmax(teacher), log_softmax(student)
    return (p * (log_p - log_q)).sum(1).mean()


def run_sequential(task: nn.Module, data: dict[str, Any], scale: float = 1.0) -> dict[str, Tensor]:
    return backward_each_view(task, data, scale, NO_SCALER, nullcontext())


def gradients(task: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in task.named_parameters()}


def in_float64(task: nn.Module, data: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    clips = {count: clip.double() for count, clip in data["clips"].items()}
    return copy.deepcopy(task).double(), {**data, "clips": clips}


@pytest.mark.parametrize("weight", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("small_views", ["distill", "label", "mixed"])
def test_loss_is_the_formula(small_views: str, weight: float) -> None:
    task = flexible_task(COUNTS, small_views=small_views, distill_weight=weight).eval()
    data = batch(COUNTS)

    outputs = task(data)

    with torch.no_grad():
        low, middle, high = (
            task.model(data["clips"][count], active=count).double().numpy() for count in COUNTS
        )
    label = data["label"].numpy()
    parts = {
        "distill": lambda logits: kl(high, logits),
        "label": lambda logits: cross_entropy(logits, label),
        "mixed": lambda logits: (kl(high, logits) + cross_entropy(logits, label)) / 2,
    }
    part, name = parts[small_views], {"distill": "kl", "label": "ce"}.get(small_views, small_views)
    expected = {
        "loss/ce_8": cross_entropy(high, label),
        f"loss/{name}_4": weight * part(middle),
        f"loss/{name}_2": weight * part(low),
    }
    losses = {key: float(value) for key, value in outputs.items() if key.startswith("loss/")}
    assert losses == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert outputs["loss"].item() == pytest.approx(sum(expected.values()), rel=1e-5)
    for count, logits in zip(COUNTS, (low, middle, high), strict=True):
        np.testing.assert_allclose(outputs[f"logits/{count}"].numpy(), logits, rtol=1e-6)
        assert not outputs[f"logits/{count}"].requires_grad


def test_plain_loss_is_cross_entropy() -> None:
    torch.manual_seed(0)
    task, data = PlainTask(tiny(), 4).eval(), batch(COUNTS)

    outputs = task(data)

    logits = task.model(data["clips"][4]).detach().double().numpy()
    expected = cross_entropy(logits, data["label"].numpy())
    assert outputs["loss"].item() == pytest.approx(expected, rel=1e-6)
    assert set(outputs) == {"loss", "loss/ce_4", "logits/4"}


def test_one_trained_count_has_no_teacher() -> None:
    outputs = flexible_task((4,))(batch((4,)))

    assert set(outputs) == {"loss", "loss/ce_4", "logits/4"}


def test_views_in_any_order() -> None:
    data = batch(COUNTS)
    task = flexible_task(COUNTS).eval()

    other = FlexibleTask(task.model, (8, 2, 4))

    assert torch.equal(other(data)["loss"], task(data)["loss"])


def test_distillation_is_zero_at_the_teacher() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64)

    assert distillation(logits, logits.log_softmax(-1)) == pytest.approx(0, abs=1e-7)
    assert distillation(logits + 3, logits.log_softmax(-1)) == pytest.approx(0, abs=1e-6)


def test_unknown_small_views() -> None:
    with pytest.raises(ValueError, match='"kl"; allowed: distill, label, mixed'):
        FlexibleTask(nn.Identity(), (4, 8), small_views="kl")


def test_tasks_are_built_from_options() -> None:
    options = FlexibleOptions(frames=[8, 2], distill_weight=0.5, small_views="mixed")
    task = FlexibleTask.from_options(nn.Identity(), options)

    assert (task.trained_frames, task.distill_weight, task.small_views) == ((2, 8), 0.5, "mixed")
    assert FlexibleTask.conversion(options) == {
        "trained_frames": (2, 8),
        "private": "norms",
        "alter": "sites",
        "interpolate": False,
    }
    assert FlexibleTask.conversion(FlexibleOptions(alteration=False))["alter"] == "none"
    assert FlexibleTask.conversion(FlexibleOptions(interpolate=True))["interpolate"] is True
    plain = TaskOptions(name="plain", frames=[4])
    assert PlainTask.from_options(nn.Identity(), plain).frames == 4
    assert PlainTask.conversion(plain) is None


def test_registered_tasks() -> None:
    assert (TASKS["flexible"], TASKS["plain"]) == (FlexibleTask, PlainTask)
    assert register_task("plain")(PlainTask) is PlainTask  # a module that is imported again
    with pytest.raises(ValueError, match=r"name 'plain' is taken by ffn\.[a-z.]+\.PlainTask"):
        register_task("plain")(FlexibleTask)
    with pytest.raises(KeyError, match='no task "plian"; did you mean plain'):
        TASKS["plian"]


def test_task_without_losses() -> None:
    with pytest.raises(NotImplementedError):
        Task(nn.Identity())({"clips": {}, "label": torch.zeros(1)})


# --- gradients ----------------------------------------------------------------------------------


def test_no_gradient_reaches_the_teacher_through_kl() -> None:
    task = flexible_task(COUNTS).train()

    (_, ce, *_), *small = list(task.losses(batch(COUNTS)))
    sum(loss for _, loss, _, _ in small).backward()

    owned = {
        count: [
            parameter
            for module in task.modules()
            if isinstance(module, PrivateModules)
            for parameter in module[str(count)].parameters()
        ]
        for count in COUNTS
    }
    assert all(parameter.grad is None for parameter in owned[8])
    assert all(parameter.grad is not None for parameter in owned[4] + owned[2])

    task.zero_grad(set_to_none=True)
    ce.backward()
    assert all(parameter.grad is not None for parameter in owned[8])
    assert all(parameter.grad is None for parameter in owned[4] + owned[2])


@pytest.mark.parametrize("small_views", ["distill", "label", "mixed"])
@pytest.mark.parametrize("run", ["together", "sequential"])
def test_every_parameter_gets_a_gradient(run: str, small_views: str) -> None:
    """DDP waits for the gradient of each parameter."""
    task, data = flexible_task(COUNTS, small_views=small_views).train(), batch(COUNTS)

    if run == "together":
        task(data)["loss"].backward()
    else:
        run_sequential(task, data)

    without = [n for n, p in task.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without


@pytest.mark.parametrize("small_views", ["distill", "label", "mixed"])
@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-10), (False, 1e-5)])
def test_together_and_sequential_are_one_step(
    small_views: str, double: bool, tolerance: float
) -> None:
    task = flexible_task(COUNTS, dropout=0.5, small_views=small_views, distill_weight=0.7).train()
    data = batch(COUNTS)
    if double:
        task, data = in_float64(task, data)
    other = copy.deepcopy(task)

    torch.manual_seed(3)
    together = task(data)
    together["loss"].backward()
    torch.manual_seed(3)
    sequential = run_sequential(other, data)

    assert set(together) == set(sequential)
    for key, value in together.items():
        torch.testing.assert_close(sequential[key], value.detach(), rtol=tolerance, atol=tolerance)
    expected, found = gradients(task), gradients(other)
    largest = max(float(g.abs().max()) for g in expected.values())
    for name in expected:
        assert (found[name] - expected[name]).abs().max() <= tolerance * largest, name
    for one, two in zip(task.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def test_task_has_dropout() -> None:
    task = flexible_task(COUNTS, dropout=0.5).train()

    assert task(batch(COUNTS))["loss"] != task(batch(COUNTS))["loss"]


def test_scale_changes_gradients_and_not_the_outputs() -> None:
    one, data = flexible_task(COUNTS).train(), batch(COUNTS)
    half = copy.deepcopy(one)

    outputs = [run_sequential(one, data, 1.0), run_sequential(half, data, 0.5)]

    assert torch.equal(outputs[0]["loss"], outputs[1]["loss"])
    for name, gradient in gradients(half).items():
        torch.testing.assert_close(2 * gradient, gradients(one)[name])


def test_sequential_keeps_one_graph_at_a_time() -> None:
    """The backward pass of a view precedes the forward pass of the next."""
    task, data = flexible_task(COUNTS).train(), batch(COUNTS)
    events: list[str] = []
    task.model.register_forward_pre_hook(lambda *_: events.append("forward"))
    task.model.model.net.fc.weight.register_hook(lambda _: events.append("backward"))

    run_sequential(task, data)
    assert events == ["forward", "backward"] * 3

    events.clear()
    task(data)["loss"].backward()
    assert events == ["forward"] * 3 + ["backward"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_near_full_precision(dtype: torch.dtype) -> None:
    task, data = flexible_task(COUNTS).eval(), batch(COUNTS)
    expected = task(data)["loss"]

    with torch.autocast("cpu", dtype):
        loss = task(data)["loss"]

    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)
    assert loss != expected


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("run", ["together", "sequential"])
def test_activation_checkpointing_gives_the_same_gradients(
    run: str, reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """timm's own: layers run again in the backward pass, after other views have run."""
    task, data = in_float64(flexible_task(COUNTS).train(), batch(COUNTS))
    other = copy.deepcopy(task)
    net, runs = other.model.model.net, []
    net.set_grad_checkpointing()
    monkeypatch.setattr("timm.layers.config._USE_REENTRANT_CKPT", reentrant)
    net.layer1[0].conv1.register_forward_pre_hook(lambda *_: runs.append(1))

    if run == "together":
        task(data)["loss"].backward()
        other(data)["loss"].backward()
    else:
        run_sequential(task, data)
        run_sequential(other, data)

    assert len(runs) == 2 * len(COUNTS), "the layer did not run again"
    expected, found = gradients(task), gradients(other)
    largest = max(float(g.abs().max()) for g in expected.values())
    for name in expected:
        assert (found[name] - expected[name]).abs().max() <= 1e-10 * largest, name
