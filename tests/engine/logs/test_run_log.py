"""The log of a run: the same numbers in ``log.jsonl``, TensorBoard and wandb, once each."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import CPU, ROOT, train

from ffn.engine.distributed import World
from ffn.engine.logs.run_log import RunLog, read_log
from ffn.engine.logs.trackers import WandbTracker


def run_log(folder: Path, first_step: int = 0, world: World = CPU, **more: Any) -> RunLog:
    folder.mkdir(exist_ok=True)
    settings = {"wandb_mode": "disabled", "project": "test", "config": {"lr": 0.1}, **more}
    return RunLog(folder, world, first_step=first_step, total_steps=8, **settings)


def train_values(step: int) -> dict[str, float]:
    return {"loss": 1 / step, "top1/8": 10.0 * step}


def record(log: RunLog, steps: range, epoch: int = 4) -> None:
    """A line per step, and two at the end of an epoch, as the loop records them."""
    for step in steps:
        log.record("train", step, train_values(step))
        if step % epoch == 0:
            log.record("train", step, {"skipped": step // epoch})
            log.record("val", step, {"top1/8": 5.0 * step, "mean": 5.0 * step})


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in entry.items() if k != "time"} for entry in read_log(folder)]


def whole(folder: Path) -> list[dict[str, Any]]:
    with run_log(folder) as log:
        record(log, range(1, 9))
    return numbers(folder)


# --- log.jsonl ----------------------------------------------------------------------------------


def test_lines_name_kind_and_key(tmp_path: Path) -> None:
    with run_log(tmp_path) as log:
        record(log, range(4, 5))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all(1.7e9 < line.pop("time") < 1e11 for line in lines)
    assert lines == [
        {"step": 4, "train/loss": 0.25, "train/top1/8": 40.0},
        {"step": 4, "train/skipped": 1},
        {"step": 4, "val/top1/8": 20.0, "val/mean": 20.0},
    ]
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [4, 4, 4]


def test_numbers_that_are_not_finite_leave_strict_json(tmp_path: Path) -> None:
    with run_log(tmp_path) as log:
        log.record("train", 1, {"loss": math.nan, "grad_norm": math.inf, "lr": 0.1})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    line = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=refuse)
    assert (line["train/loss"], line["train/grad_norm"], line["train/lr"]) == (None, None, 0.1)
    (entry,) = read_log(tmp_path)
    assert math.isnan(entry["train/loss"])
    assert math.isnan(entry["train/grad_norm"])

    with run_log(tmp_path, 1) as log:  # a resumed run keeps the line
        log.record("train", 2, {"lr": 0.1})
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0]) == line


@pytest.mark.parametrize("end", ['{"step": 2, "tra', "", '{"step": 2', "{"])
def test_last_line_of_a_run_in_progress_may_be_cut(tmp_path: Path, end: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n' + end)
    assert [entry["train/loss"] for entry in read_log(tmp_path)] == [2.0]


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe\x00\n", b"\0\0\0\n", b'{"step": "two"}\n', b'{"step": 2, "a": [1]}\n', b"\n"],
)
def test_a_damaged_log_is_kept_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    before = b'{"step": 1, "train/lr": 2.0}\n' + damage + b'{"step": 2, "train/lr": 3.0}\n'
    (tmp_path / "log.jsonl").write_bytes(before)
    with run_log(tmp_path, 2) as log:
        log.record("train", 3, {"lr": 4.0})
    assert [entry["train/lr"] for entry in read_log(tmp_path)] == [2, 3, 4]
    assert (tmp_path / "log.jsonl.damaged").read_bytes() == before
    assert "log.jsonl, line 2 is damaged. The run goes on" in caplog.text

    (tmp_path / "log.jsonl").write_bytes(before)  # an earlier copy is not replaced
    with run_log(tmp_path, 2):
        pass
    assert (tmp_path / "log.jsonl.damaged.1").read_bytes() == before


def test_last_line_may_lack_its_break(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1, "val/mean": 2.0}\n{"step": 2, "val/mean": 3}')
    assert [entry["val/mean"] for entry in read_log(tmp_path)] == [2.0, 3]


@pytest.mark.parametrize("bad", ['{"step": 1, "tra', "[1]", "7", '{"loss": 1}', "null"])
def test_other_files_are_refused(tmp_path: Path, bad: str) -> None:
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{bad}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match="line 2 is not a line of a training log"):
        read_log(tmp_path)


def test_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"log\.jsonl does not exist; give the folder"):
        read_log(tmp_path)


OLD = """\
{"kind": "train", "step": 4, "time": 1.0, "epoch": 1.0, "loss": 2.0, "loss/ce_4": 1.5}
{"kind": "skipped", "step": 4, "time": 1.5, "epoch": 1, "videos": 3}
{"kind": "val", "step": 4, "time": 2.0, "epoch": 1, "top1/4": 50.0, "mean": 50.0}
{"kind": "train", "step": 5, "time": 3.0, "epoch": 1.2, "loss": 9.0, "loss/ce_4": 9.0}
"""
NEW = [
    {"step": 4, "time": 1.0, "train/epoch": 1.0, "train/loss": 2.0, "train/loss/ce_4": 1.5},
    {"step": 4, "time": 1.5, "train/skipped": 3},
    {"step": 4, "time": 2.0, "val/epoch": 1, "val/top1/4": 50.0, "val/mean": 50.0},
]


def test_first_format_is_read_and_converted(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(OLD)
    assert read_log(tmp_path)[:3] == NEW

    with run_log(tmp_path, 4) as log:
        log.record("train", 4, {"skipped": 3})  # exists
        log.record("train", 5, {"loss": 1.0})
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[:3] == NEW
    assert [line["step"] for line in lines] == [4, 4, 4, 5]
    assert lines[3]["train/loss"] == 1.0


def test_every_key_is_in_the_documentation(finished: Path) -> None:
    text = (ROOT / "docs/logging.md").read_text()
    keys = {key for entry in read_log(finished) for key in entry if "/" in key}
    assert {"train/loss/kl_2", "train/top1/4", "val/top1/3"} < keys
    for key in keys:
        assert f"`{re.sub(r'[0-9]+$', 'N', key) if key[-2] in '/_' else key}`" in text, key


# --- a resumed run --------------------------------------------------------------------------------


@pytest.mark.parametrize("killed_at", [(4, 0), (4, 1), (4, 2), (4, 3), (5, 1), (7, 1)])
def test_each_line_is_written_once(tmp_path: Path, killed_at: tuple[int, int]) -> None:
    """The checkpoint of step 4 precedes the end of the epoch, which the resumed run repeats."""
    expected = whole(tmp_path / "whole")
    last, lines_of_last = killed_at
    log = run_log(tmp_path / "run")
    record(log, range(1, last))
    of_last = [
        ("train", train_values(last)),
        ("train", {"skipped": 1}),
        ("val", {"top1/8": 20.0, "mean": 20.0}),
    ]
    for kind, values in of_last[:lines_of_last]:
        log.record(kind, last, values)
    with (tmp_path / "run/log.jsonl").open("a") as file:
        file.write('{"step": ')

    with run_log(tmp_path / "run", 4) as log:
        if killed_at == (4, 0):  # otherwise the line precedes the checkpoint
            log.record("train", 4, train_values(4))
        log.record("train", 4, {"skipped": 1})
        log.record("val", 4, {"top1/8": 20.0, "mean": 20.0})
        record(log, range(5, 9))

    assert numbers(tmp_path / "run") == expected
    assert not list((tmp_path / "run").glob(".*"))


def test_run_from_the_start_replaces_the_log(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")
    log = run_log(tmp_path / "run")
    record(log, range(1, 3))
    with run_log(tmp_path / "run") as log:
        record(log, range(1, 9))
    assert numbers(tmp_path / "run") == expected


def test_run_killed_between_validation_and_checkpoint(
    videos: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunLog.record

    def die(log: RunLog, kind: str, step: int, values: dict[str, float]) -> None:
        real(log, kind, step, values)
        if kind == "val":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "record", die)
        with pytest.raises(KeyboardInterrupt):
            train(videos, tmp_path / "run", "train.save_steps=4")
    assert "val/mean" in read_log(tmp_path / "run")[-1]
    train(videos, tmp_path / "run", "train.save_steps=4")

    def lines(folder: Path) -> list[tuple[int, frozenset[str]]]:
        return [(entry["step"], frozenset(entry)) for entry in read_log(folder)]

    assert lines(tmp_path / "run") == lines(finished)
    assert max(Counter(lines(finished)).values()) == 1


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with run_log(tmp_path, world=World(1, 2, torch.device("cpu")), tensorboard=True) as log:
        record(log, range(1, 5))
    assert not list(tmp_path.iterdir())


# --- TensorBoard and wandb ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run killed at step 6 and resumed from a checkpoint of step 4, before its validation."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("resumed")
    everything = {"tensorboard": True, "wandb_mode": "offline"}
    with pytest.raises(KeyboardInterrupt), run_log(folder, **everything) as log:  # noqa: PT012
        record(log, range(1, 7))
        raise KeyboardInterrupt
    with run_log(folder, 4, **everything) as log:
        log.record("train", 4, {"skipped": 1})
        log.record("val", 4, {"top1/8": 20.0, "mean": 20.0})
        record(log, range(5, 9))
    return folder


def points(entries: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Curves: key -> (step, value)."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        for key in set(entry) - {"step"}:
            curves.setdefault(key, []).append((entry["step"], entry[key]))
    return curves


def test_tensorboard_holds_the_curves_of_the_log(resumed: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(resumed / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()

    assert len(list((resumed / "tensorboard").iterdir())) == 2
    expected = points(numbers(resumed))
    assert set(events.Tags()["scalars"]) == set(expected)
    for key, curve in expected.items():
        found = [(event.step, event.value) for event in events.Scalars(key)]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in curve]  # float32


def test_missing_tensorboard_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'frame-flexible\[tensorboard\]'"):
        run_log(tmp_path, tensorboard=True)
    with run_log(tmp_path):  # not requested
        pass


def wandb_records(path: Path) -> Iterator[Any]:
    """Records of an offline run: LevelDB's log format with a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    block, content = 2**15, path.read_bytes()
    assert content[:4] == b":W&B"
    position, payload = 7, b""
    while position + 7 <= len(content):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, length, part = struct.unpack("<IHB", content[position : position + 7])
        payload += content[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (1, 4):  # whole, or the last part
            found = wandb_internal_pb2.Record()
            found.ParseFromString(payload)
            payload = b""
            yield found


def test_wandb_holds_the_lines_of_the_log(resumed: Path) -> None:
    files = sorted((resumed / "wandb").glob("offline-run-*/*.wandb"))
    end = time.monotonic() + 20
    while True:  # wandb may still be writing after the end of a run
        parts = [list(wandb_records(path)) for path in files]
        kinds = [{found.WhichOneof("record_type") for found in part} for part in parts]
        if all("exit" in own for own in kinds) or time.monotonic() > end:
            break
        time.sleep(0.1)
    assert len(parts) == 2

    rows: list[dict[int, dict[str, float]]] = [{}, {}]
    for part, own in zip(parts, rows, strict=True):
        (run,) = (found.run for found in part if found.WhichOneof("record_type") == "run")
        assert run.run_id == (resumed / "wandb_id").read_text()
        assert run.resume  # `wandb sync` appends it to the run
        metrics = [found.metric for found in part if found.WhichOneof("record_type") == "metric"]
        assert [m.step_metric for m in metrics if m.glob_name == "*"] == ["step"]
        for found in part:
            if found.WhichOneof("record_type") == "history":
                row = {
                    (i.key or i.nested_key[0]): json.loads(i.value_json) for i in found.history.item
                }
                own[row["_step"]] = {k: v for k, v in row.items() if not k.startswith("_")}

    # The second part has all rows: a killed run may lose the last ones of the first.
    first, second = rows
    assert len(first) == 8
    assert list(second) == sorted(second)
    assert list(second.values()) == numbers(resumed)
    assert all(second[number] == row for number, row in first.items())


class FakeRun:
    """A run that wandb resumed online: it refuses rows before `starting_step`."""

    def __init__(self, starting_step: int) -> None:
        self.starting_step, self.rows = starting_step, []

    def define_metric(self, name: str, **options: Any) -> None:
        pass

    def log(self, values: dict[str, float], step: int, commit: bool) -> None:
        assert step >= self.starting_step + len(self.rows)
        assert commit
        self.rows.append(values)

    def finish(self, exit_code: int) -> None:
        pass


def test_wandb_gets_its_missing_rows() -> None:
    first = FakeRun(0)
    tracker = WandbTracker(first)
    tracker.record(4, 0, {"train/loss": 1.0})
    tracker.record(4, 1, {"val/mean": 2.0})
    tracker.record(5, 0, {"train/loss": 0.5})

    again = FakeRun(50 + 1)  # has the row of step 5
    tracker = WandbTracker(again)
    for step in (5, 6):
        tracker.record(step, 0, {"train/loss": 1 / step})
    tracker.record(6, 1, {"val/mean": 3.0})
    assert first.rows[1] == {"step": 4, "val/mean": 2.0}
    assert again.rows == [{"step": 6, "train/loss": 1 / 6}, {"step": 6, "val/mean": 3.0}]


def test_wandb_gets_missing_lines_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was killed when wandb had the lines up to the first one of step 4."""
    record(run_log(tmp_path), range(1, 7))
    run = FakeRun(40 + 1)
    monkeypatch.setattr("ffn.engine.logs.run_log.start_wandb", lambda *_: WandbTracker(run))
    with run_log(tmp_path, 4, wandb_mode="online") as log:
        record(log, range(5, 9))
    assert run.rows == numbers(tmp_path)[4:]
    assert numbers(tmp_path)[4] == {"step": 4, "train/skipped": 1}


def test_wandb_run_from_the_start_is_a_new_one(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    names = []
    for first_step in (0, 4, 0):
        with run_log(tmp_path, first_step, wandb_mode="offline"):
            names.append((tmp_path / "wandb_id").read_text())
    assert names[0] == names[1] != names[2]
