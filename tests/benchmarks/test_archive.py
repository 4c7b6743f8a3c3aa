"""What the benchmark of archives compares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ffn.benchmarks import archive
from ffn.benchmarks.archive import compare_archive

SMALL = {"frames": 2, "size": 28, "videos": 5, "video_frames": 10, "batch_size": 2, "rounds": 2}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFN_HOME", str(tmp_path))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_archive_is_compared_with_its_parts(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[int]] = []
    predict = archive.Predictor.predict
    monkeypatch.setattr(
        archive.Predictor,
        "predict",
        lambda self, clips: batches[-1].append(len(clips)) or predict(self, clips),
    )
    whole = archive.predict_archive

    def predicted(*arguments: object) -> None:
        batches.append([])  # a round: the archive, then the network alone
        result = whole(*arguments)
        assert (result.videos, result.kept, result.errors) == (5, 0, 0)

    monkeypatch.setattr(archive, "predict_archive", predicted)

    (found,) = compare_archive(["tsm_tiny"], workers=workers, device=torch.device("cpu"), **SMALL)

    assert batches == [[2, 2, 1] * 2] * 3  # the same batches; one round warms up
    start = "tsm_tiny, 5 videos, 2 frames of 28 px, batches of 2, "
    start += "1 reading process, fused, " if workers else "0 reading processes, fused, "
    assert found.title.startswith(start)
    assert "; building the predictor takes " in found.title
    times = {variant.name: variant.seconds for variant in found.variants}
    assert [variant.items for variant in found.variants] == [5] * 4
    slower = zip(times["reading alone"], times["network alone"], strict=True)
    assert times["the slower one"] == tuple(map(max, slower))
    assert [(ratio.name, ratio.over) for ratio in found.ratios] == [
        ("archive", part) for part in ("reading alone", "network alone", "the slower one")
    ]
