"""Early exit on predictions that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ffn.evaluation import Predictions
from ffn.evaluation.early_exit import EarlyExit, fit_early_exit, held_out

GMACS = {2: 1.0, 4: 2.0, 8: 4.0}


def predictions(videos: int = 400) -> Predictions:
    """Of four classes: confident answers are right; 2 frames are confident for half the videos."""
    random = torch.Generator().manual_seed(0)
    label = torch.randint(4, (videos,), generator=random)
    logits = {}
    for frames, sure in ((2, 0.5), (4, 0.7), (8, 0.9)):
        confident = torch.arange(videos) < sure * videos
        guess = torch.randint(4, (videos,), generator=random)
        answer = label.where(confident, guess)
        height = torch.rand(videos, generator=random) + torch.where(confident, 4.0, 1.0)
        logits[frames] = torch.nn.functional.one_hot(answer, 4) * height[:, None]
    ok = torch.ones(videos, dtype=torch.bool)
    return Predictions(tuple(map(str, range(videos))), label, ok, logits)


def cost(exits: EarlyExit, stage: torch.Tensor) -> float:
    """Mean cost by hand."""
    return sum(sum(GMACS[n] for n in exits.stages[: s + 1]) for s in stage.tolist()) / len(stage)


def test_a_fit_keeps_the_accuracy_of_the_largest_count_at_less_cost() -> None:
    given = predictions()

    found = fit_early_exit(given, GMACS)

    stage, classes = found.answer(given.logits)
    right = 100 * (classes == given.label).double().mean()
    assert found.accuracy == pytest.approx(float(right))
    assert found.gmacs == pytest.approx(cost(found, stage))
    alone = 100 * (given.answers(8)[0] == given.label).double().mean()
    assert found.accuracy >= alone
    assert found.gmacs < 0.8 * GMACS[8]


def test_a_budget() -> None:
    given = predictions()
    cheap, dear = (fit_early_exit(given, GMACS, budget) for budget in (1.5, 3.0))
    assert 1 < cheap.gmacs <= 1.5 < dear.gmacs <= 3
    assert cheap.accuracy < dear.accuracy
    with pytest.raises(ValueError, match="or more"):
        fit_early_exit(given, GMACS, 0.5)
    with pytest.raises(ValueError, match="16"):  # a count that was not tested
        fit_early_exit(given, GMACS | {16: 8.0})


def test_held_out_videos_and_those_that_cannot_be_decoded() -> None:
    given = predictions()
    given.ok[::4] = False
    for logits in given.logits.values():
        logits[::4] = torch.nan
    accuracy, gmacs = held_out(given, GMACS)
    assert 85 < accuracy < 100
    assert gmacs < GMACS[8]


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    fit = fit_early_exit(predictions(), GMACS)
    written = replace(fit, network="net", weights_sha256="abc")
    written.save(tmp_path / "net.early_exit.json")
    assert EarlyExit.load(tmp_path / "net.early_exit.json") == written
    written.check_network("abc", "net")
    with pytest.raises(ValueError, match="other"):
        written.check_network("abcd", "other")
    (tmp_path / "damaged.json").write_text('{"format": 1, "stages": [4, 2], "thresholds": [0.5]}')
    with pytest.raises(ValueError, match="damaged"):
        EarlyExit.load(tmp_path / "damaged.json")
