"""The train step with plain arguments, against optimizer steps written out by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_toys import CPU, batch, flexible_task, in_float64, state_of, toy_step
from torch import Tensor, nn

import ffn
from ffn.data import Normalize, Preprocessing
from ffn.engine.mixup import BatchMix
from ffn.engine.tasks import Task
from ffn.engine.train_step import StepResult, TrainStep

COUNTS = (2, 4)
NORMALIZE = Normalize(Preprocessing(crop=16, resize=20))


def loaded(seed: int, size: int = 4) -> dict[str, Any]:
    """A micro-batch as a training loader returns it."""
    found = batch(COUNTS, size=size, seed=seed)
    clips = {t: (60 * clip + 128).clamp(0, 255).byte() for t, clip in found["clips"].items()}
    return {**found, "clips": clips, "skipped": []}


def bad(seed: int = 9) -> dict[str, Any]:
    """A micro-batch whose loss is not finite: a label of NaN probabilities."""
    found = loaded(seed)
    return {**found, "label": torch.full((4, 3), torch.nan)}


def make_step(task: Task, *, scales: tuple[float, float] = (1.0, 1.0), **options: Any) -> TrainStep:
    """Momentum SGD with two groups: the first parameter, and the others."""
    first, *others = task.parameters()
    groups = [{"params": [first], "lr_scale": scales[0]}, {"params": others, "lr_scale": scales[1]}]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    settings = {"normalize": NORMALIZE, "batch_mix": BatchMix(3), **options}
    return TrainStep(task.train(), optimizer, CPU, **settings)


def run(step: TrainStep, *batches: dict[str, Any], first: int = 0) -> list[StepResult]:
    """One step per batch."""
    return [
        step.step([one], number=number, lr=0.05) for number, one in enumerate(batches, start=first)
    ]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[key]) for key, value in one.items())


def test_steps_are_clipped_momentum_sgd_with_the_scale_of_each_group() -> None:
    """By hand: v = 0.9 v + g min(1, c / |g|); w = w - lr scale v."""
    limit, scales = 0.3, (3.0, 0.5)
    task = flexible_task(COUNTS)
    hand = copy.deepcopy(task).train()
    step = make_step(task, scales=scales, clip_grad_norm=limit)
    velocity = [torch.zeros_like(p) for p in hand.parameters()]

    for number, lr in enumerate((0.05, 0.05, 0.02)):
        data = loaded(number)
        result = step.step(iter([data]), number=number, lr=lr)

        clips = {t: NORMALIZE(clip) for t, clip in data["clips"].items()}
        hand.zero_grad()
        loss = hand({"clips": clips, "label": data["label"]})["loss"]
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in hand.parameters()]).norm()
        assert norm > limit
        with torch.no_grad():
            for place, (parameter, v) in enumerate(zip(hand.parameters(), velocity, strict=True)):
                v.mul_(0.9).add_(parameter.grad * limit / norm)
                parameter.sub_(lr * scales[min(place, 1)] * v)

        (outputs,) = result.outputs
        assert outputs["loss"].item() == pytest.approx(loss.item(), rel=1e-5)
        assert {"loss/ce_4", "loss/kl_2", "logits/4", "logits/2"} < set(outputs)
        assert result.grad_norm.item() == pytest.approx(norm.item(), rel=1e-4)
        assert (result.updated, result.warning, result.stop) == (True, None, False)
    for (name, value), expected in zip(
        step.model.state_dict().items(), hand.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_gradients_and_batches_of_a_step_are_used_once() -> None:
    """Each micro-batch is mixed with its own draws."""
    keys = []

    def mix(data: dict[str, Any], *, step: int, micro: int, rank: int) -> dict[str, Any]:
        keys.append((step, micro, rank))
        return data

    step = make_step(flexible_task(COUNTS), grad_accum_steps=2, batch_mix=mix)
    batches = iter([{**loaded(number), "skipped": [f"{number}"]} for number in range(5)])
    results = [
        step.step(batches, number=number, lr=0.05, stop=lambda number=number: number == 1)
        for number in range(2)
    ]

    skipped = [[one["skipped"] for one in r.outputs] for r in results]
    assert skipped == [[["0"], ["1"]], [["2"], ["3"]]]
    assert keys == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert [result.stop for result in results] == [False, True]
    assert all(parameter.grad is None for parameter in step.model.parameters())
    with pytest.raises(ValueError, match="step 3 got 1 micro-batches; grad_accum_steps is 2"):
        step.step(batches, number=2, lr=0.05)


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_micro_batches_train_as_one(views: str) -> None:
    """With norms that do not depend on the batch, in float64."""
    tasks = [flexible_task(COUNTS).double() for _ in range(2)]
    halves = [in_float64(batch(COUNTS, seed=seed)) | {"skipped": []} for seed in range(2)]
    clips = {t: torch.cat([half["clips"][t] for half in halves]) for t in COUNTS}
    whole = {"clips": clips, "label": torch.cat([h["label"] for h in halves]), "skipped": []}
    for task, micros in zip(tasks, ([whole], halves), strict=True):
        ffn.freeze(task.model, "norms")
        step = toy_step(CPU, task, views, grad_accum_steps=len(micros))
        for number in range(3):
            step.step(micros, number=number, lr=0.05)

    one, other = (task.model.state_dict() for task in tasks)
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-9, atol=1e-10)


def test_random_numbers_depend_on_seed_and_number_alone() -> None:
    task = flexible_task(COUNTS, dropout=0.5)

    def loss(number: int, before: int = 0, **options: Any) -> float:
        step = make_step(copy.deepcopy(task), **options)
        torch.manual_seed(before)
        return step.step([loaded(0)], number=number, lr=0.05).outputs[0]["loss"].item()

    assert loss(5) == loss(5, before=1)
    assert loss(5) != loss(6)
    assert loss(5) != loss(5, seed=1)


# --- bad steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sequential", [True, False])
def test_bad_step_changes_nothing(sequential: bool) -> None:
    """Weights, statistics, momentum and average are those of a run without the batch."""
    one, other = (
        make_step(flexible_task(COUNTS), sequential=sequential, ema_decay=0.5) for _ in range(2)
    )
    results = run(one, loaded(0), bad(), loaded(1))
    run(other, loaded(0))
    run(other, loaded(1), first=2)

    assert [result.updated for result in results] == [True, False, True]
    assert not results[1].outputs[0]["loss"].isfinite()
    assert same(one.model.state_dict(), other.model.state_dict())
    assert same(one.ema.module.state_dict(), other.ema.module.state_dict())
    states = (step.optimizer.state_dict()["state"] for step in (one, other))
    for first, second in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(first["momentum_buffer"], second["momentum_buffer"])


def test_what_makes_a_bad_step() -> None:
    """One micro-batch whose loss, or a parameter whose gradient, is not finite."""
    step = make_step(flexible_task(COUNTS), grad_accum_steps=2)
    before = state_of(step.model)
    result = step.step([loaded(0), bad()], number=0, lr=0.05)
    assert not result.updated
    assert "the loss is not finite at step 1: step skipped (1 in a row, 1 in all)" in result.warning

    next(step.model.parameters()).register_hook(lambda gradient: gradient * torch.inf)
    result = step.step([loaded(0), loaded(1)], number=1, lr=0.05)
    assert "the gradient is not finite at step 2: step skipped" in result.warning
    assert same(step.model.state_dict(), before)


def test_fp16_overflow_lowers_the_loss_scale_and_is_not_a_bad_step() -> None:
    step = make_step(flexible_task(COUNTS), precision="fp16")
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**80)
    before = state_of(step.model)

    (result,) = run(step, loaded(0))
    assert (result.updated, result.warning, step.bad_steps) == (False, None, 0)
    assert step.scaler.get_scale() == 2.0**79
    assert same(step.model.state_dict(), before)

    (result,) = run(step, bad(), first=1)  # the loss itself is not finite at any scale
    assert result.warning is not None


# --- parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_clips_in_units_of_the_loss(precision: str, sequential: bool) -> None:
    """Only the forward pass has it."""
    task, seen, stepped, limit = flexible_task(COUNTS), [], [], 0.05
    conv = next(m for m in task.modules() if isinstance(m, nn.Conv2d))
    conv.register_forward_hook(lambda _, given, output: seen.append(output.dtype))
    step = make_step(task, precision=precision, sequential=sequential, clip_grad_norm=limit)
    take = step.scaler.step

    def watch(optimizer: torch.optim.Optimizer) -> Any:
        stepped.append(torch.stack([p.grad.norm() for p in task.parameters()]).norm().item())
        return take(optimizer)

    step.scaler.step = watch
    results = [result for result in run(step, *map(loaded, range(3))) if result.updated]

    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert set(seen) == {types[precision]}
    assert step.scaler.is_enabled() == (precision == "fp16")
    assert {p.dtype for p in step.model.parameters()} == {torch.float32}
    assert stepped == pytest.approx([limit] * len(results), rel=1e-3)
    assert len(results) >= (1 if precision == "fp16" else 3)  # its first loss scale overflows
    assert all(limit < result.grad_norm < 50 for result in results)  # without loss scale


def test_network_is_the_average_of_the_weights_if_there_is_one() -> None:
    """By the formula: a_t = d a_(t-1) + (1 - d) w_t with d = min(decay, 1 - t^(-2/3))."""
    step = make_step(flexible_task(COUNTS))
    assert step.network is step.model
    step = make_step(flexible_task(COUNTS), ema_decay=0.5)
    expected: dict[str, Tensor] = {}
    for number in range(4):
        run(step, loaded(number), first=number)
        d = min(0.5, 1 - (number + 1) ** (-2 / 3))
        for key, value in state_of(step.model).items():
            is_averaged = number > 0 and value.is_floating_point()
            expected[key] = d * expected[key] + (1 - d) * value if is_averaged else value
    for key, value in step.network.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
