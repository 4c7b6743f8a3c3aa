"""The cascade command: fit a file, test it, and report on several networks."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cascade_predictions import GMACS, predictions, save
from serve_files import CLASSES, PREPROCESSING, save_network

from ffn.cli.cascade import _costs, _joined, main
from ffn.cli.publish import main as publish_main
from ffn.data.video_list import ListedVideo, write_videos
from ffn.evaluation import Row, Sweep, load_predictions, save_table
from ffn.evaluation.cascades.file import CascadeFile
from ffn.evaluation.cascades.trials import half_trials
from ffn.zoo import create_model, load, save_weights, state_sha256


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_network(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


@pytest.fixture(scope="module")
def digest(weights: Path) -> str:
    return state_sha256(load(weights).state_dict())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, digest: str) -> Path:
    return save(tmp_path_factory.mktemp("seen") / "seen.safetensors", predictions(), digest)


def test_fit_and_report(
    tmp_path: Path, weights: Path, digest: str, seen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cascade.safetensors"
    given = ["fit", "--weights", str(weights), "--predictions", str(seen)]
    given += ["--frames", "2", "8", "--output", str(file)]
    assert main(given) == 0

    printed = capsys.readouterr()
    assert printed.out.startswith("stages ")
    assert printed.out.endswith(f"{file}\n")
    assert not printed.err
    loaded = CascadeFile.load(file)
    assert (loaded.weights_sha256, loaded.classes, loaded.fit.videos) == (digest, CLASSES, 120)
    lost = loaded.fit.raw[8] - loaded.chosen.accuracy
    change = f"{abs(lost):.2f} points {'lower' if lost > 0 else 'higher'}" if lost else "the same"
    assert f", and its accuracy is {change}" in printed.out
    assert ("a fit to more videos may find a more accurate one" in printed.out) == (lost > 0)
    assert loaded.fit.gmacs[8] == pytest.approx(4 * loaded.fit.gmacs[2], rel=1e-3)
    assert main(given) == 2
    assert "exists; choose another --output, or add --overwrite" in capsys.readouterr().err
    copy = tmp_path / "copy.safetensors"
    for end in (".safetensors", ".yaml"):
        shutil.copy(weights.with_suffix(end), copy.with_suffix(end))
    kept = ["fit", "--weights", str(copy), "--predictions", str(seen), "--frames", "2", "8"]
    assert main(kept) == 0
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'copy.cascade.safetensors'}\n")
    publish = ["--output", str(tmp_path / "release")]
    assert publish_main([str(copy), "net", *publish]) == 0
    released = tmp_path / "release/net.cascade.safetensors"
    assert capsys.readouterr().out.endswith(f"{released}: its cascade\n")
    assert CascadeFile.load(released).weights_sha256 == digest
    for end in (".safetensors", ".yaml"):
        copy.with_suffix(end).unlink()
    save_network(copy, spread=0.1)
    assert publish_main([str(copy), "other", *publish]) == 2
    assert "Fit a cascade to these weights" in capsys.readouterr().err
    assert not (tmp_path / "release/other.safetensors").exists()
    assert main([*given, "--overwrite", "--output", "c.txt"]) == 2
    assert "expected a name that ends with .safetensors" in capsys.readouterr().err
    budget = ["--budget-gmacs", str(loaded.fit.gmacs[2]), "--overwrite"]
    assert main([*given, *budget]) == 0
    assert CascadeFile.load(file).chosen.stages == (2,)
    capsys.readouterr()

    new = save(tmp_path / "new.safetensors", predictions(90, seed=5), digest)
    report = ["report", "--cascade", str(file), "--output", str(tmp_path / "out/report")]
    assert main([*report, "--predictions", str(new)]) == 0
    content = json.loads((tmp_path / "out/report.json").read_text())
    measured = CascadeFile.load(file).cascade.measure(load_predictions(new), loaded.fit.gmacs)
    assert content["mean"]["cascade"]["accuracy"] == pytest.approx(measured.accuracy)
    assert "net.s0, fitted to 120 videos, tested on 90 others" in capsys.readouterr().out
    assert main([*report, "--predictions", str(new)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    rows = tuple(Row(n, n, 5.0, 9.0, 5.0, GMACS[n], 1000, 10.0 + n, 90, 0) for n in GMACS)
    how = {"fused": True, "precision": "bf16", "device": "a machine"}
    timed = save_table([Sweep("net.s0", None, 1000, (8, 8), rows, (), how)], tmp_path / "t")[1]
    untimed = [replace(row, latency_ms=None) for row in rows]
    without = save_table([Sweep("net.s0", None, 1000, (8, 8), untimed, (), how)], tmp_path / "u")[1]
    more = ["--overwrite", "--predictions", str(new), "--results"]
    assert main([*report, *more, str(timed)]) == 0
    shown, note = capsys.readouterr()
    assert not note
    assert "| less than the largest count | ms |" in shown
    content = json.loads((tmp_path / "out/report.json").read_text())
    assert content["timing"] == "fused, bf16, on a machine"
    assert content["mean"]["fixed"]["8"]["ms"] == 18.0
    other = save_table([Sweep("b.s1", None, 1000, (8, 8), rows, (), how)], tmp_path / "other")[1]
    assert main([*report, *more, str(other)]) == 0
    assert "has the cost of b.s1, and the predictions are of net.s0" in capsys.readouterr().err
    assert main([*report, *more, str(without)]) == 2
    assert "has no latencies; test without --no-latency" in capsys.readouterr().err
    assert main([*report, "--overwrite", "--predictions", str(seen)]) == 2
    assert "120 of 120 videos are among the 120" in capsys.readouterr().err


def test_a_plain_network_without_trained_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.safetensors"
    meta = {"model": "tsm_tiny", "num_classes": 3, "preprocessing": PREPROCESSING.to_dict()}
    save_weights(create_model("tsm_tiny", num_classes=3), plain, meta)
    digest = state_sha256(load(plain).state_dict())
    kept = save(tmp_path / "kept.safetensors", predictions(), digest)
    given = ["fit", "--weights", str(plain), "--predictions", str(kept)]

    assert main(given) == 2
    assert "unknown number of trained frames; give frames=, or --frames" in capsys.readouterr().err
    assert main([*given, "--frames", "2", "8"]) == 0
    fit = CascadeFile.load(tmp_path / "plain.cascade.safetensors").fit
    assert fit.gmacs[8] == pytest.approx(4 * fit.gmacs[2], rel=1e-3)


def test_relative_and_absolute_paths_of_one_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"data/{n}.mp4" for n in range(120)]
    absolute = [os.path.abspath(name) for name in names]
    files = [
        str(save(tmp_path / f"{n}.safetensors", predictions(paths=tuple(paths)), "0" * 64))
        for n, paths in enumerate((names, absolute, [f"other/{name}" for name in names]))
    ]

    with pytest.raises(ValueError, match="have videos in common"):
        _joined(files[:2], "net", "0" * 64)
    assert len(_joined(files[1:], "net", "0" * 64).paths) == 240


def test_networks_of_different_counts_have_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tuple(Row(n, n, 50.0, 90.0, 50.0, GMACS[n], 1000, None, 80, 0) for n in GMACS)
    results = save_table([Sweep("net.s0", None, 1000, (8, 8), rows, (), {})], tmp_path)[1]
    kept = predictions(40)
    fewer = {n: kept.logits[n] for n in (2, 8)}
    more = save(tmp_path / "more.safetensors", replace(kept, name="more"))
    less = save(tmp_path / "less.safetensors", replace(kept, name="less", logits=fewer))
    given = ["report", "--results", str(results), "--frames", "2", "8", "--output"]
    for name, file in (("more", more), ("less", less)):
        assert main([*given, str(tmp_path / name), "--predictions", str(file)]) == 0
    capsys.readouterr()

    for files in (
        [str(more), str(less)],
        [str(less), str(more)],
        [str(less), "--earlier", str(tmp_path / "more.json")],
        [str(more), "--earlier", str(tmp_path / "less.json")],
    ):
        assert main([*given, str(tmp_path / "both"), "--predictions", *files]) == 2
        assert "the networks were tested at different frame counts" in capsys.readouterr().err
    assert not (tmp_path / "both.json").exists()


def test_fit_warns_of_training_videos(
    tmp_path: Path, weights: Path, seen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run folder of the weights lists them."""
    for end in (".safetensors", ".yaml"):
        shutil.copy(weights.with_suffix(end), tmp_path / f"last{end}")
    given = ["fit", "--weights", str(tmp_path / "last.safetensors"), "--predictions", str(seen)]
    paths = load_predictions(seen).paths
    for split, count in (("val", 0), ("train", 7)):
        videos = [ListedVideo(split, path, "0", "", "", "", "") for path in paths[:7]]
        write_videos(tmp_path / "videos.csv.gz", videos)
        assert main([*given, "--frames", "2", "8", "--overwrite"]) == 0
        shown = capsys.readouterr().err
        assert (f"warning: {count} of 120 videos are training videos" in shown) == bool(count)


def test_what_is_read_is_never_overwritten(
    tmp_path: Path, weights: Path, seen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["fit", "--weights", str(weights), "--predictions", str(seen), "--overwrite", "--output"]
    results, earlier = tmp_path / "results.json", tmp_path / "earlier.json"
    report = ["report", "--predictions", str(seen), "--frames", "2", "8", "--overwrite"]
    report += ["--results", str(results), "--earlier", str(earlier), "--output"]
    for path in (results, earlier):
        path.write_text("read")
    for path, given in (
        (weights, [*fit, str(weights)]),
        (seen, [*fit, str(seen)]),
        (results, [*report, str(results.with_suffix(""))]),
        (earlier, [*report, str(earlier.with_suffix(""))]),
    ):
        before = path.read_bytes()
        assert main(given) == 2
        assert f"{path} is what the command reads; choose another" in capsys.readouterr().err
        assert path.read_bytes() == before


@pytest.mark.slow
def test_predictions_of_other_weights_are_refused(
    tmp_path: Path, weights: Path, digest: str, seen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(*files: Path, **more: str) -> str:
        options = [x for key, value in more.items() for x in (f"--{key}", value)]
        output = ["--frames", "2", "8", "--output", str(tmp_path / "c.safetensors"), "--overwrite"]
        status = main(["fit", "--weights", str(weights), "--predictions", *map(str, files), *output,
                       *options])  # fmt: skip
        return f"{status} {capsys.readouterr().err}"

    other = save(tmp_path / "other.safetensors", predictions(seed=1), "f" * 64)
    assert "has the predictions of other weights, net.s0 with SHA-256 ffff" in fit(other)
    unknown = save(tmp_path / "unknown.safetensors", predictions(seed=1))
    text = fit(unknown)
    assert text.startswith("0 ")
    assert "does not store its weights, it has the name net.s0; it is taken for" in text
    assert fit(seen, unknown).startswith("0 ")
    assert CascadeFile.load(tmp_path / "c.safetensors").fit.videos == 240
    assert "have videos in common" in fit(seen, seen)
    clips = tuple(f"{n // 2}.mp4" for n in range(120))  # two clips of each file
    clips = save(tmp_path / "clips.safetensors", predictions(seed=2, paths=clips), digest)
    assert fit(clips, seen) == "0 "
    assert "have videos in common" in fit(clips, clips)
    views = save(tmp_path / "views.safetensors", predictions(protocol="2x3"), digest)
    assert "was tested with 2x3 views per video" in fit(views)
    classes = save(tmp_path / "classes.safetensors", predictions(classes=4), digest)
    assert "the predictions have 4 classes" in fit(classes)
    several = save(
        tmp_path / "several.safetensors", replace(predictions(), label=torch.zeros(120, 3)), digest
    )
    assert "several labels; a cascade needs one label per video" in fit(several)
    assert "no cascade reaches an accuracy of 99.90 %" in fit(seen, accuracy="99.9")
    assert "has no predictions; expected *.predictions.safetensors" in fit(weights)
    assert "no file" in fit(tmp_path / "none.safetensors")


@pytest.mark.slow
def test_a_report_on_seeds_fits_on_halves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"net.s{seed}" for seed in range(2)]
    kept = [predictions(80, seed=n, name=name) for n, name in enumerate(names)]
    files = [save(tmp_path / f"{one.name}.safetensors", one) for one in kept]
    rows = tuple(Row(n, n, 50.0, 90.0, 50.0, GMACS[n], 1000, None, 80, 0) for n in GMACS)
    sweep = Sweep("net.s0", None, 1000, (8, 8), rows, (), {})
    results = save_table([sweep], tmp_path)[1]
    rows = tuple(replace(row, latency_ms=1.0) for row in rows)
    how = {"precision": "fp32", "device": "a machine"}
    timed = save_table([replace(sweep, rows=rows, measured=how)], tmp_path / "timed")[1]
    given = ["report", "--predictions", *map(str, files), "--output", str(tmp_path / "seeds")]
    several = [replace(sweep, name=name) for name in ("a", "b")]
    others = save_table(several, tmp_path / "others")[1]
    costly = tuple(replace(row, gmacs=99.0) for row in rows)
    joined = save_table([replace(several[0], rows=costly), sweep], tmp_path / "both")[1]
    assert _costs(str(joined), [2, 8], names)[0] == GMACS
    more = ["--results", str(results), "--frames", "2", "8"]

    assert main([*given, *more, "--budget-gmacs", "1.5"]) == 0

    content = json.loads((tmp_path / "seeds.json").read_text())
    assert [*content["networks"]] == names
    for one in kept:
        trials = half_trials(one, (2, 8), GMACS, lambda fit: fit.within(1.5))
        mean = sum(t["cascade"]["accuracy"] for t in trials) / 2
        assert content["networks"][one.name]["cascade"]["accuracy"] == pytest.approx(mean)
    text = (tmp_path / "seeds.md").read_text()
    assert "net.s0, net.s1, each fitted on half of 80 videos" in text
    assert "±" in text

    one = ["report", "--predictions", str(files[0]), "--output", str(tmp_path / "one")]
    assert main([*one, *more, "--budget-gmacs", "1.5"]) == 0
    rest = ["report", "--predictions", str(files[1]), "--output", str(tmp_path / "joined")]
    rest += ["--earlier", str(tmp_path / "one.json")]
    assert main([*rest, *more, "--budget-gmacs", "1.5"]) == 0
    for suffix in (".md", ".csv", ".json"):
        assert (tmp_path / f"joined{suffix}").read_text() == (
            tmp_path / f"seeds{suffix}"
        ).read_text()
    capsys.readouterr()
    for arguments, message in (
        ([*given, *more, "--earlier", str(tmp_path / "one.json")], "the network net.s0 twice"),
        ([*given, *more, "--earlier", str(results)], "is not a report on cascades; expected the"),
        ([*rest, *more[:2], "--frames", "2", "4", "8"], "tested at different frame counts"),
        ([*rest, "--results", str(timed), *more[2:]], "one.json: none; of "),
        (given, "give --frames, the counts to choose from, and --results"),
        ([*given, "--cascade", "x", "--frames", "2"], "--frames is for a report without --cascade"),
        ([*given, "--cascade", "x"], "--cascade belongs to one network; got 2 files"),
        ([*given, *more[:2], "--frames", "2", "9"], "has no cost at 9 frames"),
        ([*given, "--results", str(others), *more[2:]], "has the networks a, b, and the predictio"),
    ):
        assert main([*arguments, "--overwrite"]) == 2
        assert message in capsys.readouterr().err
