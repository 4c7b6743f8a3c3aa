"""The losses against the formulas of the paper, written out in float64, and their gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import assert_same_gradients, backward, batch, flexible_task, in_float64, tiny
from torch import nn

from ffn.core import PrivateModules
from ffn.engine.mixup import BatchMix
from ffn.engine.tasks import (
    TASKS,
    FlexibleOptions,
    FlexibleTask,
    MixedSamplingTask,
    PlainOptions,
    PlainTask,
    ProportionalSamplingTask,
    Task,
    register_task,
)
from ffn.labels import label_kind

COUNTS = (2, 4, 8)
WEIGHTS = torch.tensor([0.4, 1.3, 2.6])
SMALL_VIEWS = {"distill": "kl", "label": "ce", "mixed": "mixed"}  # name of the loss
VIEWS = pytest.mark.parametrize("views", ["together", "sequential"])


def all_tasks(dropout: float = 0.0) -> dict[str, Task]:
    """A task of every kind, with the views 2, 4 and 8."""
    torch.manual_seed(0)
    return {
        "plain": PlainTask(tiny(dropout), 8),
        "mixed_sampling": MixedSamplingTask(tiny(dropout), 8, 2, mix_probability=0.5),
        "proportional_sampling": ProportionalSamplingTask(tiny(dropout), 8),
        "flexible": flexible_task(COUNTS, dropout, distill_weight=0.7),
        "label": flexible_task(COUNTS, dropout, small_views="label"),
        "mixed": flexible_task(COUNTS, dropout, small_views="mixed"),
    }


def labelled(kind: str, *, multi_label: bool) -> dict[str, Any]:
    """A batch with labels of a kind; the first of several videos with any labels has none."""
    data = batch(COUNTS, size=5)
    if multi_label:
        data["label"] = torch.tensor(
            [[0, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1], [1, 0, 0]]
        ).float()
    if kind == "mixed":
        mix = BatchMix(3, mixup=0.5, smoothing=0.2, seed=1, multi_label=multi_label)
        data = mix(data, step=0, micro=0, rank=0)
    return data


def formulas(
    outputs: dict[str, Any], label: np.ndarray, weights: np.ndarray, *, multi_label: bool
) -> dict[str, Any]:
    """Functions of a view for its cross-entropy and its KL from the view of 8 frames."""

    def p(view: int) -> np.ndarray:
        x = np.exp(outputs[f"logits/{view}"].double().numpy())
        return x / (1 + x) if multi_label else x / x.sum(1, keepdims=True)

    def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return p * np.log(p / q)

    if multi_label:
        return {
            "ce": lambda v: (
                -(weights * label * np.log(p(v)) + (1 - label) * np.log(1 - p(v))).mean()
            ),
            "kl": lambda v: (kl(p(8), p(v)) + kl(1 - p(8), 1 - p(v))).mean(),
        }
    return {
        "ce": lambda v: -(weights * label * np.log(p(v))).sum(1).mean(),
        "kl": lambda v: ((weights * label).sum(1) * kl(p(8), p(v)).sum(1)).mean(),
    }


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("kind", ["labels", "mixed"])
@pytest.mark.parametrize("multi_label", [False, True], ids=["single", "multi"])
@pytest.mark.parametrize("name", all_tasks())
def test_losses_are_the_formulas(
    name: str, multi_label: bool, kind: str, weights: torch.Tensor | None
) -> None:
    task, data = all_tasks()[name].eval(), labelled(kind, multi_label=multi_label)
    task.class_weights, task.labels = weights, label_kind(multi_label)

    outputs = task(data)

    label = data["label"].double().numpy() if data["label"].ndim > 1 else np.eye(3)[data["label"]]
    factor = np.ones(3) if weights is None else weights.double().numpy()
    loss = formulas(outputs, label, factor, multi_label=multi_label)
    ce = task.labels.loss_name
    expected = {f"loss/{ce}_8": loss["ce"](8)}
    if isinstance(task, FlexibleTask):
        loss["mixed"] = lambda view: (loss["kl"](view) + loss["ce"](view)) / 2
        part = SMALL_VIEWS[task.small_views]
        key = ce if part == "ce" else part
        expected |= {f"loss/{key}_{n}": task.distill_weight * loss[part](n) for n in (2, 4)}
        for n in COUNTS:
            logits = task.model(data["clips"][n], active=n)
            torch.testing.assert_close(outputs[f"logits/{n}"], logits.detach())
    losses = {key: float(value) for key, value in outputs.items() if key.startswith("loss/")}
    assert losses == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert outputs["loss"].item() == pytest.approx(sum(expected.values()), rel=1e-5)
    assert not any(outputs[key].requires_grad for key in outputs if key != "loss")


def test_one_trained_count_has_no_teacher() -> None:
    assert set(flexible_task((4,))(batch((4,)))) == {"loss", "loss/ce_4", "logits/4"}


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
    plain = PlainOptions(name="plain", frames=[4])
    assert PlainTask.from_options(nn.Identity(), plain).frames == 4
    assert PlainTask.conversion(plain) is None
    assert TASKS["plain"] is register_task("plain")(PlainTask)  # a module that is imported again


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("multi_label", [False, True], ids=["single", "multi"])
def test_no_gradient_reaches_the_teacher_through_kl(multi_label: bool) -> None:
    task = flexible_task(COUNTS).train()
    task.labels = label_kind(multi_label)

    (_, ce, *_), *small = list(task.losses(labelled("labels", multi_label=multi_label)))
    sum(loss for _, loss, _, _ in small).backward()

    private = [module for module in task.modules() if isinstance(module, PrivateModules)]
    owned = {n: [p for m in private for p in m[str(n)].parameters()] for n in COUNTS}
    assert all(parameter.grad is None for parameter in owned[8])
    assert all(parameter.grad is not None for parameter in owned[4] + owned[2])

    task.zero_grad(set_to_none=True)
    ce.backward()
    assert all(parameter.grad is not None for parameter in owned[8])
    assert all(parameter.grad is None for parameter in owned[4] + owned[2])


@pytest.mark.parametrize("name", all_tasks())
def test_together_and_sequential_are_one_step(name: str) -> None:
    """With dropout and, in mixed sampling, a random mix."""
    task, data = all_tasks(dropout=0.5)[name].double().train(), in_float64(batch(COUNTS))
    other = copy.deepcopy(task)

    outputs = []
    for one, views in ((task, "together"), (other, "sequential")):
        torch.manual_seed(3)
        outputs.append(backward(one, data, views))

    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    assert outputs[0]["loss"] != task(data)["loss"]  # other draws
    assert_same_gradients(task, other)


def test_sequential_keeps_one_graph_at_a_time() -> None:
    """The backward pass of a view precedes the forward pass of the next."""
    task, data = flexible_task(COUNTS).train(), batch(COUNTS)
    events: list[str] = []
    task.model.register_forward_pre_hook(lambda *_: events.append("forward"))
    task.model.model.net.fc.weight.register_hook(lambda _: events.append("backward"))

    backward(task, data, "sequential")
    assert events == ["forward", "backward"] * 3

    events.clear()
    backward(task, data, "together")
    assert events == ["forward"] * 3 + ["backward"]


def test_activation_checkpointing_of_timm_gives_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reentrant: layers run again in the backward pass, after other views have run."""
    task, data = flexible_task(COUNTS).double().train(), in_float64(batch(COUNTS))
    other = copy.deepcopy(task)
    net, runs = other.model.model.net, []
    net.set_grad_checkpointing()
    monkeypatch.setattr("timm.layers.config._USE_REENTRANT_CKPT", True)
    net.layer1[0].conv1.register_forward_pre_hook(lambda *_: runs.append(1))

    for one in (task, other):
        backward(one, data)

    assert len(runs) == 2 * len(COUNTS), "the layer did not run again"
    assert_same_gradients(task, other)
