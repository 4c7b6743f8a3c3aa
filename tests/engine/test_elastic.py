"""Results do not depend on the number of processes and workers."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from engine_toys import DRAWS, PROPORTIONAL, RANGES, options, read_log, weights

pytestmark = pytest.mark.slow

FOUR = ("train.batch_size=4", "train.save_steps=1")  # 6 steps per epoch
DIES = {"rank": 0, "owner": "ffn.engine.checkpointer", "name": "save_step", "nth": 4, "after": 0}


def record_order(own: int, folder: Path, dies: bool) -> None:
    """Write the videos of each micro-batch to a file; perhaps kill rank 0."""

    def record(_: Any, batch: dict[str, Any], *, number: int, **__: Any) -> None:
        with (folder / f"{own}.jsonl").open("a") as file:
            file.write(json.dumps([number, batch["index"].tolist()]) + "\n")

    forked.before_each_call("ffn.engine.train_step:TrainStep", "_backward", record)
    if dies:
        forked.kill(own, **DIES)


def batches(folder: Path) -> dict[int, list[int]]:
    """The videos of every step over all processes, in the order of one process."""
    found: dict[int, list[int]] = {}
    files = [path.read_text().splitlines() for path in sorted(folder.glob("*.jsonl"))]
    for micro in zip(*(map(json.loads, lines) for lines in files), strict=False):
        (number,) = {number for number, _ in micro}
        # Position p of the order is with process p mod world.
        together = zip(*(index for _, index in micro), strict=True)
        found.setdefault(number, []).extend(index for same in together for index in same)
    return found


def test_order_of_samples(videos: Path, tmp_path: Path) -> None:
    """For several numbers of processes, workers and micro-batches, also changed within a run."""

    def train(name: str, world: int, workers: int, micro: int, dies: bool) -> dict[int, list[int]]:
        order = tmp_path / f"order_{name}_{world}_{micro}"
        order.mkdir()
        more = (*FOUR, f"data.workers={workers}", f"train.grad_accum_steps={micro}")
        status = forked.train(
            options(videos, tmp_path / name, *more),
            world=world,
            prepare=partial(record_order, folder=order, dies=dies),
        )
        assert (-signal.SIGKILL in status) == dies
        return batches(order)

    first = train("one", 1, 0, 1, False)
    assert sorted(first) == list(range(12))
    for epoch in (0, 6):  # each video once per epoch
        indices = [index for step in range(epoch, epoch + 6) for index in first[step]]
        assert sorted(indices) == list(range(24))
    assert train("four", 4, 0, 1, False) == first
    assert train("two", 2, 2, 2, False) == first
    seen: dict[int, list[int]] = {}
    for world, workers, micro, dies in ((2, 2, 1, True), (4, 0, 1, True), (1, 2, 4, False)):
        part = train("changing", world, workers, micro, dies)
        assert part == {step: first[step] for step in part}
        seen |= part
    assert seen == first


def compute_in_float64(own: int) -> None:
    """In float32, the order of sums changes six steps by more than 1e-6."""
    from ffn.engine import build_network, task_base, train_step

    build_task, to_device = build_network.build_task, train_step.to_device

    def doubled(batch: dict[str, Any], *more: Any) -> dict[str, Any]:
        batch = to_device(batch, *more)
        return {**batch, "clips": {t: clip.double() for t, clip in batch["clips"].items()}}

    def nothing(_: Any, loader: Any, **more: Any) -> tuple[dict[int, Any], Sequence[str]]:
        return {view: {"top1": 0.0, "failed": 0} for view in loader.dataset.views}, ()

    build_network.build_task = lambda *given: build_task(*given).double()
    train_step.to_device = doubled
    task_base.evaluate = nothing  # computes in float32


PROBE = ("train.freeze=[head_only]", "train.class_weights=balanced")
SEQUENTIAL = ("train.views=sequential",)


@pytest.mark.parametrize(
    "more",
    [
        (),
        SEQUENTIAL,
        PROBE,
        (*RANGES, *SEQUENTIAL),
        (*DRAWS, "train.batch_size=8", "train.grad_accum_steps=2"),
        PROPORTIONAL,
    ],
    ids=["together", "sequential", "probe", "ranges", "draws", "proportional"],
)
def test_losses_are_those_of_one_process(
    videos: Path, start: str, tmp_path: Path, more: tuple[str, ...]
) -> None:
    exact = ("model.dropout=0", "train.epochs=1", "optim.groups=standard", "train.freeze=[norms]")
    for world in (1, 4):
        given = options(videos, tmp_path / str(world), *FOUR, *exact, start, *more)
        output = tmp_path / "output"
        status = forked.train(given, world=world, prepare=compute_in_float64, output=output)
        assert status == [0] * world, output.read_text()

    one, four = (read_log(tmp_path / world) for world in ("1", "4"))
    losses = [key for key in one[0] if key.startswith("loss")]
    if more in ((), SEQUENTIAL):
        assert max(entry["loss/kl_2"] for entry in one) > 0.1  # not negligible
    for found, expected in zip(four, one, strict=True):
        for key in losses:
            assert found[key] == pytest.approx(expected[key], rel=1e-6), key
    expected = weights(tmp_path / "1")
    for key, value in weights(tmp_path / "4").items():
        torch.testing.assert_close(value, expected[key], rtol=1e-6, atol=1e-6, msg=key)
