"""Results do not depend on the number of processes and workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_toys import options, read_log, weights
from forked import Forks

from ffn.engine.checkpoints import load_checkpoint

FOUR = ("train.batch_size=4", "train.save_steps=1")  # 6 steps per epoch


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as program:
        yield program


def batches(folder: Path) -> dict[int, list[int]]:
    """The videos of every step over all processes, in the order of one process."""
    found: dict[int, list[int]] = {}
    entries = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    ]
    for one in zip(*entries, strict=True):
        assert len({entry["step"] for entry in one}) == 1
        # Position p of the order is with process p mod world.
        together = [
            index for same in zip(*(e["index"] for e in one), strict=True) for index in same
        ]
        found.setdefault(one[0]["step"], []).extend(together)
    return found


@pytest.mark.slow
def test_order_of_samples(forks: Forks, videos: Path, tmp_path: Path) -> None:
    """For 1, 2, 4 processes, 0 and 2 workers, 1 and 2 micro-batches, and after changes of all."""
    found = []
    ways = [(1, 0, 1), (1, 2, 1), (2, 2, 1), (4, 0, 1), (2, 2, 2)]
    for world, workers, accumulate in ways:
        place = tmp_path / f"{world}_{workers}_{accumulate}"
        (place / "order").mkdir(parents=True)
        more = (*FOUR, f"data.workers={workers}", f"train.grad_accum_steps={accumulate}")
        job = forks.run(options(videos, place / "run", *more), world=world, order=place / "order")
        assert job["status"] == [0] * world
        found.append(batches(place / "order"))
    assert sorted(found[0]) == list(range(12))
    for first in (0, 6):  # each video once per epoch
        epoch = [index for step in range(first, first + 6) for index in found[0][step]]
        assert sorted(epoch) == list(range(24))
    assert all(one == found[0] for one in found)

    # Interrupted in the middle of an epoch and resumed with another setup, twice.
    place, seen = tmp_path / "changing", {}
    changes = [(2, 2, 1, True), (4, 0, 1, True), (1, 4, 4, False)]
    for turn, (world, workers, accumulate, dies) in enumerate(changes):
        order = place / f"order{turn}"
        order.mkdir(parents=True)
        more = (*FOUR, f"data.workers={workers}", f"train.grad_accum_steps={accumulate}")
        job = forks.run(
            options(videos, place / "run", *more),
            world=world,
            order=order,
            kill={"where": "save", "rank": 0, "after": 0.01, "nth": 3} if dies else None,
        )
        assert (job["status"] == [0] * world) != dies
        part = batches_so_far(order, world)
        assert all(part[step] == found[0][step] for step in part)
        seen |= part
    assert seen == found[0]


def batches_so_far(folder: Path, world: int) -> dict[int, list[int]]:
    """Like `batches`, for processes that were killed at different steps."""
    paths = [folder / f"{rank}.jsonl" for rank in range(world)]
    lines = [path.read_text().splitlines() for path in paths]
    whole = min(map(len, lines))
    steps = [json.loads(line)["step"] for line in lines[0][:whole]]
    micro = max(map(steps.count, steps))
    whole -= whole % micro
    for path, own in zip(paths, lines, strict=True):
        path.write_text("".join(f"{line}\n" for line in own[:whole]))
    return batches(folder)


EXACT = ("model.dropout=0", "train.epochs=1", "optim.groups=standard")


@pytest.mark.slow
@pytest.mark.parametrize("views", ["together", "sequential"])
def test_losses_are_those_of_one_process(
    forks: Forks, videos: Path, start: str, tmp_path: Path, views: str
) -> None:
    """In float64: in float32, the order of sums changes six steps by more than 1e-6."""
    more = (*FOUR, *EXACT, start, "train.freeze=[norms]", f"train.views={views}")
    for world in (1, 2, 4):
        job = forks.run(options(videos, tmp_path / str(world), *more), world=world, double=True)
        assert job["status"] == [0] * world

    one = read_log(tmp_path / "1")
    assert len(one) == 6
    assert max(entry["loss/kl_2"] for entry in one) > 0.1  # not negligible
    for world in (2, 4):
        for entry, expected in zip(read_log(tmp_path / str(world)), one, strict=True):
            for key in ("loss", "loss/ce_4", "loss/kl_2"):
                assert entry[key] == pytest.approx(expected[key], rel=1e-6), (world, key)
        for key, value in weights(tmp_path / str(world)).items():
            expected = weights(tmp_path / "1")[key]
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6, msg=key)


@pytest.mark.slow
def test_statistics_of_other_processes_are_averaged(
    forks: Forks, videos: Path, tmp_path: Path
) -> None:
    more = (*FOUR, "model.dropout=0")
    kill = {"where": "save", "rank": 0, "after": 0.01, "nth": 3}
    forks.run(options(videos, tmp_path / "run", *more), world=2, kill=kill)
    before = load_checkpoint(tmp_path / "run/last.pt")["training"]["buffers"]
    assert len(before) == 2
    assert any(not torch.equal(a, b) for a, b in zip(*before, strict=True))

    output = tmp_path / "output"
    assert forks.run(options(videos, tmp_path / "run", *more), output=output)["status"] == [0]
    assert "running statistics are averaged" in output.read_text()
