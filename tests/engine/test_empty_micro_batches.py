"""Micro-batches without readable videos count as nothing; steps without any are skipped."""

from __future__ import annotations

from pathlib import Path

import engine_toys
import pytest
import torch
from engine_toys import batch, build, flexible_task, read_log, state_of, train, write_videos
from rank_cases import ONE, skipping_steps
from ranks import Ranks
from torch import Tensor

from ffn.data import VideoError
from ffn.engine import loop
from ffn.engine.checkpoints.file import load_checkpoint
from ffn.engine.checkpoints.folder import RunFolder
from ffn.engine.run import Run

# Per step and rank, whether each micro-batch has videos.
PLANS = {
    "all": [[[1, 1], [1, 1]]] * 3,
    "last": [[[1, 1], [1, 1]], [[1, 0], [1, 1]], [[1, 1], [1, 0]], [[1, 1], [1, 1]]],
    "first": [[[0, 1], [1, 1]], [[1, 1], [0, 1]], [[1, 1], [1, 1]]],
    "one process": [[[1, 1], [0, 0]], [[0, 0], [1, 1]], [[1, 1], [1, 1]]],
    "a step": [[[1, 1], [1, 1]], [[0, 0], [0, 0]], [[0, 1], [1, 0]], [[1, 1], [1, 1]]],
}


def by_hand(plan: list[list[list[int]]]) -> dict[str, Tensor]:
    """SGD on the mean loss of the micro-batches that have videos."""
    task = flexible_task().train()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.01, momentum=0.9)
    for step, ranks in enumerate(plan):
        places = [(r, m) for r, micros in enumerate(ranks) for m, has in enumerate(micros) if has]
        if not places:
            continue
        optimizer.zero_grad()
        for rank, micro in places:
            loss = task(batch(seed=100 * step + 10 * rank + micro))["loss"]
            (loss / len(places)).backward()
        optimizer.step()
    return {name: value.detach() for name, value in task.model.named_parameters()}


def check(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("views", ["together", "sequential"])
@pytest.mark.parametrize("plan", PLANS)
def test_two_processes(two_ranks: Ranks, plan: str, views: str) -> None:
    found = two_ranks.run(skipping_steps, PLANS[plan], views, False)

    check(found[0]["weights"], by_hand(PLANS[plan]))
    for key, value in found[0]["weights"].items():
        assert torch.equal(value, found[1]["weights"][key]), key
    warned = [not any(map(any, ranks)) for ranks in PLANS[plan]]
    for own in found:
        assert [bool(text) for text in own["warnings"]] == warned
        assert own["means"] == found[0]["means"]


@pytest.mark.parametrize("plan", PLANS)
def test_one_process(plan: str) -> None:
    alone = [ranks[:1] for ranks in PLANS[plan]]

    check(skipping_steps(ONE, alone, "together", False)["weights"], by_hand(alone))


@pytest.mark.parametrize("plan", ["last", "one process"])
def test_synchronized_norms_leave_the_micro_batch_out(two_ranks: Ranks, plan: str) -> None:
    """Its statistics need videos on every process: as if no process had any."""
    same = [[[int(all(m)) for m in zip(*ranks, strict=True)]] * 2 for ranks in PLANS[plan]]
    found = two_ranks.run(skipping_steps, PLANS[plan], "together", True)
    expected = two_ranks.run(skipping_steps, same, "together", True)

    check(found[0]["weights"], expected[0]["weights"])


def test_a_step_without_usable_videos_names_the_cause(two_ranks: Ranks) -> None:
    """Readable videos are not called unreadable."""
    plan = [[[0, 1], [1, 0]], [[0, 0], [0, 0]]]
    for own in two_ranks.run(skipping_steps, plan, "together", True):
        unused, unreadable = own["warnings"]
        assert "a process has no readable video in step 1 (a.mp4: bad), and train.sync_bn" in unused
        assert "no video of step 2 is readable (a.mp4: bad): step skipped (2 in a row" in unreadable


# --- runs ----------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "broken").mkdir()
    folder = write_videos(tmp_path / "broken", train=6, val=3)
    (folder / "train_3.mp4").write_bytes(b"no video")
    return folder


def keys(run: Run, epoch: int) -> list[tuple]:
    run.train_loader.sampler.set_epoch(epoch)
    return list(run.train_loader.sampler)


SINGLE = ("train.batch_size=1", "train.freeze_bn=true", "data.on_error=skip", "train.save_steps=1")


def test_a_broken_video_alone_in_its_batch_does_not_end_the_run(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = build(broken, tmp_path / "run", *SINGLE)
    model, seen = run.train_step.model, []
    engine_toys.after_each_step(run, lambda _: seen.append(state_of(model)))
    loop.train(run)

    order = [key[1] for epoch in range(2) for key in keys(run, epoch)]
    shown = capsys.readouterr().out
    for number in range(1, 12):
        same = all(torch.equal(v, seen[number - 1][k]) for k, v in seen[number].items())
        assert same == (order[number] == 3), number
    assert shown.count("is readable") == 2
    assert "train_3.mp4" in shown
    assert sum(entry["bad_steps"] for entry in read_log(tmp_path / "run")) == 2
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] == 12


def test_unreadable_videos_do_not_prevent_checkpoints(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only steps that are not finite do: weights are as good as before such a step."""
    for number in range(1, 6):
        (broken / f"train_{number}.mp4").write_bytes(b"no video")
    saved: list[int] = []
    monkeypatch.setattr(RunFolder, "save", lambda self, content, step: saved.append(step))
    train(broken, tmp_path / "run", *SINGLE, "train.max_bad_steps=50")
    assert {*saved} == {*range(1, 13)}


def test_several_such_steps_in_a_row_end_the_run(broken: Path, tmp_path: Path) -> None:
    for number in range(6):
        (broken / f"train_{number}.mp4").write_bytes(b"no video")
    with pytest.raises(VideoError, match=r"no video of step 3 is readable .*last of 3 bad steps"):
        train(broken, tmp_path / "run", *SINGLE, "train.max_bad_steps=3")


def test_without_skipping_the_video_ends_the_run(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"train_3\.mp4"):
        train(broken, tmp_path / "run", *SINGLE, "data.on_error=fail")
