from __future__ import annotations

import importlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluation_toys import (
    MultiLabelVideos,
    NaNAtVideo,
    ToyVideos,
    comparable,
    flexible,
    loader,
    metrics_by_hand,
    normalized,
    plain,
    spawned,
)
from rich.console import Console
from tables import read_csv
from torch import multiprocessing as mp

from ffn.data import Protocol
from ffn.evaluation import (
    Sweep,
    ensemble,
    evaluate,
    load_predictions,
    load_table,
    print_table,
    save_predictions,
    save_table,
    sweep,
)


@pytest.fixture(scope="module")
def swept() -> Sweep:
    toys = ToyVideos(33, failed=(4, 20))
    return sweep(flexible(), loader(toys, batch_size=4), name="toy.f2_6", keep_logits=True)


def test_rows_equal_a_loop_over_videos(swept: Sweep) -> None:
    toys, model = ToyVideos(33, failed=(4, 20)), flexible().eval()
    labels = [record.label for record in toys.records]
    assert [row.frames for row in swept.rows] == [2, 4, 6]
    for row in swept.rows:
        clips = [normalized(toys[i]["clips"][row.frames])[None] for i in range(33)]
        with torch.no_grad():
            logits = [model(clip)[0].tolist() for clip in clips]
        expected = metrics_by_hand(logits, labels, toys.failed)
        assert row.metrics == pytest.approx(expected, abs=1e-12)
        assert 0 < row.metrics["top1"] < row.metrics["top5"] < 100
        assert (row.videos, row.failed) == (33, 2)
        assert row.gmacs == row.frames * (3 * 3 * 6 * 27 + 54 * 7) / 1e9
        assert row.latency_ms > 0
    assert [row.subnet for row in swept.rows] == [2, 6, 6]
    assert swept.failed == ("video_4.mp4: no frames", "video_20.mp4: no frames")
    assert swept.params - swept.rows[0].params == 2 * 6 + 3
    assert swept.crop == (8, 8)


@pytest.mark.parametrize("batch_size", [None, 1, 4, 100])
def test_several_views_are_averaged_video_by_video(batch_size: int | None) -> None:
    """Against a loop over videos and views, in double precision."""
    toys, model = ToyVideos(9, failed=(4,), protocol=Protocol(2, 3)), flexible()
    sizes = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))

    result = sweep(
        model, loader(toys), batch_size=batch_size, latency=False, keep_logits=True
    )  # fmt: skip

    most = batch_size or 2  # by default the loader's
    assert max(size for size in sizes) == min(most, 12)
    assert (result.protocol, result.views) == ("2x3", 6)
    expected = flexible().eval()
    for row in result.rows:
        right = []
        for i in range(9):
            sample = toys[i]
            with torch.no_grad():
                views = [
                    expected(normalized(clip)[None])[0].double().softmax(0)
                    for clip in sample["clips"][row.frames]
                ]
            mean = sum(views) / 6
            kept = result.predictions.logits[row.frames][i]
            if sample["ok"]:
                torch.testing.assert_close(kept.exp().double(), mean, rtol=1e-4, atol=1e-6)
            right.append(sample["ok"] and mean.argmax().item() == sample["label"])
        assert row.score == pytest.approx(100 * sum(right) / 9, abs=1e-12)
        assert row.gmacs == row.frames * (3 * 3 * 6 * 27 + 54 * 7) / 1e9  # of one view


def test_evaluate_gives_the_accuracies_of_the_sweep(swept: Sweep) -> None:
    got, failed = evaluate(flexible(), loader(ToyVideos(33, failed=(4, 20))))

    assert got == {row.frames: row.metrics | {"failed": 2} for row in swept.rows}
    assert failed == swept.failed


def test_the_model_and_the_random_state_are_restored() -> None:
    model = flexible().train()
    model.model.net[2].eval()
    model.activate(2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    given = loader(ToyVideos(5))
    given.generator = torch.Generator()  # torch's loader draws a seed for its workers
    random = torch.get_rng_state()

    sweep(model, given)

    assert model.active == 2
    assert [module.training for module in model.modules()] == modes
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)


def test_auto_is_resolved_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = importlib.import_module("ffn.export.runner")  # ffn.export is the function
    monkeypatch.setattr(runner, "has_bf16", lambda: True)
    monkeypatch.setattr(runner.InferenceRunner, "_fastest", lambda *_: "torch bf16")
    result = sweep(flexible(), loader(ToyVideos(5)), precision="auto", runtime="torch")
    assert result.measured["precision"] == "bf16"
    text = io.StringIO()
    print_table([result], Console(file=text, width=200))
    assert "median latency of one clip, torch, bf16, on " in text.getvalue()
    module = importlib.import_module("ffn.evaluation.sweep")  # so is ffn.evaluation.sweep
    monkeypatch.setattr(module, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="in several processes"):
        sweep(flexible(), loader(ToyVideos(5)), precision="auto")


def test_the_error_for_nan_names_frame_count_and_first_video() -> None:
    toys = ToyVideos(7)

    with pytest.raises(FloatingPointError, match=r"at 4 frames, first for video 5 \(video_5.mp4\)"):
        evaluate(NaNAtVideo(toys[5]["clips"][4]), loader(toys))


def test_videos_that_the_loader_leaves_out_are_an_error() -> None:
    collate = loader(ToyVideos(7)).collate_fn
    part = torch.utils.data.DataLoader(ToyVideos(7), sampler=[0, 2, 6], collate_fn=collate)

    with pytest.raises(RuntimeError, match="4 of 7 videos were not evaluated, first video 1"):
        evaluate(plain(), part)


@pytest.mark.slow
def test_several_processes_equal_one(tmp_path: Path) -> None:
    world_size = 3
    mp.spawn(spawned, args=(world_size, str(tmp_path)), nprocs=world_size)

    ranks = [
        json.loads((tmp_path / f"{world_size}_{r}.json").read_text()) for r in range(world_size)
    ]
    for videos in (7, 2):
        toys = ToyVideos(videos, failed=(1,))
        alone = sweep(flexible(), loader(toys), latency=False, keep_logits=True)
        metrics, _ = evaluate(flexible(), loader(toys))
        both = [alone, sweep(plain(), loader(toys), latency=False, keep_logits=True)]
        several = loader(MultiLabelVideos(videos, failed=(1,)))
        several = comparable(sweep(flexible(), several, latency=False))
        assert ranks[0][f"ensemble_{videos}"] == comparable(ensemble(both))
        for rank, got in enumerate(ranks):
            assert got[f"sweep_{videos}"] == comparable(alone)
            assert got[f"several_{videos}"] == several
            assert got[f"evaluate_{videos}"] == {str(t): m for t, m in metrics.items()}
            assert (got[f"kept_{videos}"] is None) == (rank > 0)
        for frames, logits in ranks[0][f"kept_{videos}"].items():
            expected = alone.predictions.logits[int(frames)]
            torch.testing.assert_close(torch.tensor(logits), expected, equal_nan=True)
    padded, _ = evaluate(flexible(), loader(ToyVideos(7)))
    for got in ranks:
        assert "at 4 frames, first for video 5 (video_5.mp4)" in got["error"]
        assert got["padded"] == {str(t): m for t, m in padded.items()}


def test_predictions_reproduce_the_table(swept: Sweep, tmp_path: Path) -> None:
    kept = load_predictions(save_predictions(swept, tmp_path / "new" / "toy.safetensors"))

    assert kept.paths == tuple(f"video_{i}.mp4" for i in range(33))
    assert kept.label.tolist() == [3 * i % 5 for i in range(33)]
    assert (~kept.ok).nonzero().flatten().tolist() == [4, 20]
    for row in swept.rows:
        logits = kept.logits[row.frames]
        assert logits[4].isnan().all()
        right = (logits.argmax(1) == kept.label) & kept.ok
        assert 100 * right.double().mean().item() == pytest.approx(row.score, abs=1e-12)


def test_tables_are_read_back(swept: Sweep, tmp_path: Path) -> None:
    other = sweep(plain(), loader(ToyVideos(5)), name="plain", latency=False)

    files = save_table([swept, other], tmp_path / "new")

    assert [file.name for file in files] == ["results.csv", "results.json", "results.png"]
    assert load_table(files[1]) == [replace(swept, predictions=None), other]
    rows = read_csv(files[0])
    assert [row["network"] for row in rows] == ["toy.f2_6"] * 3 + ["plain"] * 3
    assert float(rows[1]["top1"]) == swept.rows[1].score
    assert (rows[3]["subnet"], rows[3]["latency_ms"]) == ("", "")
    assert files[2].read_bytes().startswith(b"\x89PNG")
    written = json.loads(files[1].read_text())["networks"][0]
    assert set(written["measured"]) == {"date", "device", "versions", "precision", "runtime"}
    assert written["measured"]["versions"]["torch"] == torch.__version__
