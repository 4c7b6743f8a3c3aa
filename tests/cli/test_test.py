"""``tools/test.py``: tables, options, messages, and failures of one of two processes."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pictures import enlarged, places, read_picture
from PIL import Image

import ffn
from ffn.cli.arguments import names_of
from ffn.cli.test import main
from ffn.core import convert
from ffn.data import Preprocessing, decode, read_classes
from ffn.datasets.synthetic import generate
from ffn.evaluation import Sweep, load_predictions, load_table
from ffn.zoo import create_model, load, save_weights, state_sha256

ROOT = Path(__file__).parents[2]
# The configuration of all tests in this file: clips of 32 pixels from generated videos.
CONFIG = """\
data:
  root: {root}
  workers: 0
  on_error: skip
  test_frames: [3]
log:
  output: {root}/run
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with videos (one broken), a config, and weights of two networks."""
    root = tmp_path_factory.mktemp("motion") / "data"
    generate(root, train_per_class=1, val_per_class=1, size=36, frames=12)
    sorted((root / "videos").glob("val*"))[0].write_bytes(b"no video")
    (root / "config.yaml").write_text(CONFIG.format(root=root))

    classes = read_classes(root / "classes.txt")
    torch.manual_seed(0)
    plain = create_model("tsm_tiny", num_classes=len(classes))
    meta = {
        "model": "tsm_tiny",
        "num_classes": len(classes),
        "classes": classes,
        "preprocessing": Preprocessing(crop=32, resize=36).to_dict(),
    }
    save_weights(plain, root / "plain.safetensors", meta | {"config": {"task": {"frames": [8]}}})
    flexible = convert(plain, (2, 4))
    save_weights(flexible, root / "flexible.safetensors", meta | {"trained_frames": (2, 4)})
    other = create_model("tsm_tiny", num_classes=len(classes))
    save_weights(other, root / "other.safetensors", meta | {"config": {"task": {"frames": [4]}}})
    save_weights(other, root / "reversed.safetensors", meta | {"classes": classes[::-1]})
    return root


def test_networks_are_tested_at_the_given_frames(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [str(root / f"{name}.safetensors") for name in ("flexible", "plain")]
    arguments = ["--frames", "5", "2", "--no-latency", "--save-predictions"]

    status = main([str(root / "config.yaml"), "--weights", *weights, *arguments])

    assert status == 0
    flexible, plain = load_table(root / "run" / "test" / "results.json")
    assert (flexible.name, plain.name) == ("flexible", "plain")
    assert [(row.frames, row.subnet) for row in flexible.rows] == [(2, 2), (5, 4)]
    assert [(row.frames, row.subnet) for row in plain.rows] == [(2, None), (5, None)]
    assert plain.trained_frames == (8,)
    assert len(plain.failed) == 1
    assert plain.crop == (32, 32)
    kept = load_predictions(root / "run" / "test" / "flexible.predictions.safetensors")
    assert kept.logits[5].shape == (12, 12)  # one video of each class
    assert kept.weights_sha256 == state_sha256(load(weights[0]).state_dict())
    assert (kept.name, kept.protocol) == ("flexible", "1x1")
    screen = capsys.readouterr().out
    assert str(root / "run" / "test" / "results.png") in screen
    assert "1 of 12 videos could not be decoded" in screen


def test_equal_file_names_are_told_apart_by_their_folders(root: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for file in ("plain.safetensors", "plain.yaml"):
            shutil.copy(root / file, tmp_path / folder / file)
    files = [tmp_path / folder / "plain.safetensors" for folder in ("one", "two")]
    given = [str(root / "config.yaml"), "--no-latency", "--save-predictions", "--weights"]

    assert main([*given, *map(str, files), "--output", str(tmp_path / "test")]) == 0

    names = [network.name for network in load_table(tmp_path / "test" / "results.json")]
    assert names == ["one/plain", "two/plain"]
    kept = sorted(file.name for file in (tmp_path / "test").glob("*.safetensors"))
    assert kept == ["one_plain.predictions.safetensors", "two_plain.predictions.safetensors"]


@pytest.mark.parametrize(
    ("weights", "names"),
    [
        (["a/run/best.pt", "a/run/last.pt"], ["run/best", "run/last"]),
        (["a/run/last.pt", "b/run/last.pt", "b/x/last.pt"], ["a/run/last", "b/run/last", "x/last"]),
        (["zoo.name", "a/zoo.name.safetensors"], ["zoo.name", "a/zoo.name"]),
    ],
)
def test_networks_are_named_by_run_and_file(weights: list[str], names: list[str]) -> None:
    assert list(names_of(weights).values()) == names


def test_networks_whose_files_would_have_one_name_are_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names `run/best` and `run_best` differ, those of their files do not."""
    given = [str(root / "config.yaml"), "--output", str(tmp_path / "test"), "--weights"]
    assert main([*given, "run/best.pt", "run_best.safetensors", "--details"]) == 2
    assert "two networks would write the files" in capsys.readouterr().err
    more = [str(root / "plain.safetensors"), "ensemble.safetensors", "--ensemble"]
    assert main([*given, *more, "--save-predictions"]) == 2
    assert "test/ensemble.*; rename one of" in capsys.readouterr().err


def test_one_file_given_twice_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for again in ("plain.safetensors", "./plain.safetensors"):
        weights = [str(root / "plain.safetensors"), f"{root}/{again}"]
        output = ["--output", str(tmp_path / "test")]
        assert main([str(root / "config.yaml"), "--weights", *weights, *output]) == 2
        assert again in capsys.readouterr().err
    assert not (tmp_path / "test").exists()


def test_option_protocol_overrides_the_config(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = ["--weights", str(root / "plain.safetensors"), "--no-latency"]
    found = {}
    for name, more in {
        "default": [],
        "config": ["data.test_protocol=1x3"],
        "command": ["data.test_protocol=1x3", "--protocol", "2x1"],
    }.items():
        output = tmp_path / name
        status = main([str(root / "config.yaml"), *weights, "--output", str(output), *more])
        assert status == 0
        found[name] = load_table(output / "results.json")[0]

    assert {name: sweep.protocol for name, sweep in found.items()} == {
        "default": "1x1",
        "config": "1x3",
        "command": "2x1",
    }
    assert {name: sweep.crop for name, sweep in found.items()} == {
        "default": (32, 32),
        "config": (36, 36),
        "command": (32, 32),
    }
    assert all(sweep.rows[0].videos == 12 for sweep in found.values())
    assert main([str(root / "config.yaml"), *weights, "--protocol", "2x2", "--overwrite"]) == 2
    assert "2x2 is unknown; expected CLIPSxCROPS" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["1x1", "1x3"])
def test_ensemble_is_the_mean_of_the_saved_probabilities(
    root: Path, tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [str(root / f"{name}.safetensors") for name in ("plain", "other")]
    given = [str(root / "config.yaml"), "--weights", *weights, "--protocol", protocol, "--ensemble"]

    saving = ["--frames", "3", "5", "--no-latency", "--save-predictions"]
    assert main([*given, *saving, "--output", str(tmp_path)]) == 0

    one, other, result = load_table(tmp_path / "results.json")
    assert (one.name, other.name, result.name) == ("plain", "other", "ensemble")
    assert (result.trained_frames, result.protocol) == ((4, 8), protocol)
    files = [tmp_path / f"{n.name}.predictions.safetensors" for n in (one, other, result)]
    kept = [load_predictions(file) for file in files]
    assert str(files[2]) in capsys.readouterr().out
    ok = kept[0].ok
    for row in result.rows:
        first, second, found = (p.logits[row.frames].double().softmax(1) for p in kept)
        mean = (first + second) / 2
        torch.testing.assert_close(found[ok], mean[ok], rtol=1e-5, atol=1e-8)
        right = (mean.argmax(1) == kept[0].label) & ok
        assert row.top1 == pytest.approx(100 * right.double().mean().item())
        assert row.params == one.params + other.params


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["plain"], "an ensemble of 1 network; give the weights of two or more"),
        (["plain", "plain"], "twice; give each network once"),
        (["plain", "reversed"], "class 0 is "),
        (["plain", "other", "missing"], "no file"),
    ],
)
def test_ensemble_is_refused_before_the_first_test(
    root: Path, tmp_path: Path, names: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [str(root / f"{name}.safetensors") for name in names]
    given = [str(root / "config.yaml"), "--output", str(tmp_path), "--ensemble"]

    assert main([*given, "--weights", *weights]) == 2

    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_results_are_kept_if_the_ensemble_fails(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(sweeps: list[Sweep]) -> None:
        raise ValueError("these networks have no mean")

    monkeypatch.setattr("ffn.evaluation.ensemble", fail)
    weights = [str(root / f"{name}.safetensors") for name in ("plain", "other")]
    given = [str(root / "config.yaml"), "--weights", *weights, "--ensemble", "--no-latency"]

    assert main([*given, "--output", str(tmp_path)]) == 2

    assert "these networks have no mean" in capsys.readouterr().err
    assert [one.name for one in load_table(tmp_path / "results.json")] == ["plain", "other"]


@pytest.mark.parametrize("classes", [10, 14])
@pytest.mark.parametrize("more", [["--save-predictions"], ["--details"], ["--ensemble"]])
def test_unnamed_classes_of_another_number_are_refused(
    root: Path, tmp_path: Path, classes: int, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights of `ffn convert_checkpoint` without --classes; the data set has 12 classes."""
    record = yaml.safe_load((root / "plain.yaml").read_text())
    unnamed = {"name": "unnamed", "num_classes": classes, "classes": None}
    network, path = create_model("tsm_tiny", num_classes=classes), tmp_path / "unnamed.safetensors"
    save_weights(network, path, record | unnamed)
    weights = [str(root / "plain.safetensors")] * ("--ensemble" in more) + [str(path)]
    output = tmp_path / "test"

    given = [str(root / "config.yaml"), "--no-latency", "--output", str(output), *more]
    assert main([*given, "--weights", *weights]) == 2

    message = f"unnamed.safetensors has {classes} classes without names; the data set has 12. Set"
    assert message in capsys.readouterr().err
    assert not list(output.iterdir())


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_details_agree_with_the_table(root: Path, tmp_path: Path) -> None:
    weights = [str(root / f"{name}.safetensors") for name in ("plain", "other")]
    given = [str(root / "config.yaml"), "--weights", *weights, "--ensemble", "--details"]
    given += ["--save-predictions", "--frames", "3", "5", "--no-latency", "--output", str(tmp_path)]

    assert main(given) == 0

    for network in load_table(tmp_path / "results.json"):
        start = f"{tmp_path}/{network.name}"
        answers = read(Path(f"{start}.predictions.csv"))
        classes = read(Path(f"{start}.classes.csv"))
        matrices = read(Path(f"{start}.confusion.csv"))
        for row in network.rows:
            (found,) = [[r for r in answers if int(r["frames"]) == row.frames]]
            assert len(found) == row.videos == 12
            right = sum(r["correct"] == "True" for r in found)
            assert row.top1 == pytest.approx(100 * right / 12)
            per_class = [r for r in classes if int(r["frames"]) == row.frames]
            means = [float(r["top1"]) for r in per_class]
            assert row.mean_class == pytest.approx(sum(means) / len(means))
            assert sum(int(r["failed"]) for r in per_class) == row.failed == 1
            matrix = [r for r in matrices if int(r["frames"]) == row.frames]
            assert sum(int(r[r["class"]]) for r in matrix) == right
        for kind in ("classes", "confusion", "mistakes"):
            assert Path(f"{start}.{kind}.png").read_bytes()[:4] == b"\x89PNG"
    assert main(given) == 2
    assert main([*given, "--overwrite"]) == 0


def test_the_page_on_results_names_all_files_and_reads_them(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/testing.md").read_text()
    given = [str(root / "config.yaml"), "--weights", str(root / "plain.safetensors")]
    written = ["--details", "--save-predictions", "--frames", "8", "--output", str(tmp_path)]

    assert main([*given, *written, "--no-latency"]) == 0

    named = re.findall(r"`((?:results|NAME)\.[\w.]+)`", page.partition("## Per class")[0])
    files = [file.name for file in tmp_path.iterdir()]
    assert sorted(name.replace("NAME", "plain") for name in named) == sorted(files)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(from ffn.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("NAME", "plain"), names)
    rows = read(tmp_path / "plain.predictions.csv")
    assert [row["path"] for row in rows] == list(names["kept"].paths)
    found = [
        int(answer) == int(row["label"]) for answer, row in zip(names["answer"], rows, strict=True)
    ]
    assert [row["correct"] for row in rows] == [str(right) for right in found]


@pytest.mark.parametrize("extra", [[], ["--interpolate", "--shuffle-frames"]])
def test_every_file_is_kept_without_overwrite(
    root: Path, tmp_path: Path, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [str(root / f"{name}.safetensors") for name in ("flexible", "other")]
    given = [str(root / "config.yaml"), "--weights", *weights, "--ensemble", "--details", *extra]
    given += ["--save-predictions", "--frames", "3", "--no-latency", "--output", str(tmp_path)]
    assert main(given) == 0
    capsys.readouterr()
    written = list(tmp_path.iterdir())
    assert len(written) == 3 + 3 * 7

    for path in written:
        path.rename(tmp_path.parent / path.name)
    for path in written:  # alone in the folder
        path.write_text("mine")
        assert main(given) == 2, path
        assert f"{path} exists; choose another --output, or add" in capsys.readouterr().err
        assert path.read_text() == "mine"
        path.unlink()


SOURCES = ["video", pytest.param("folder", marks=pytest.mark.slow)]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> list[str]:
    """Options that read the same pixels from the videos or folders of frames."""
    if request.param == "video":
        return []
    rows = read(root / "val.csv")
    for row in rows:
        folder = tmp_path / "frames" / Path(row["path"]).stem
        folder.mkdir(parents=True)
        if (root / row["path"]).read_bytes() != b"no video":
            for i, frame in enumerate(decode(root / row["path"], range(12))):
                Image.fromarray(frame.numpy()).save(folder / f"{i:03d}.png")
        row["path"] = str(folder)
    with (root / "folders.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return ["data.val=folders.csv", "data.frame_pattern='{:03d}.png'"]


def test_the_most_confident_mistakes_are_drawn(
    root: Path, tmp_path: Path, source: list[str]
) -> None:
    given = [str(root / "config.yaml"), "--weights", str(root / "plain.safetensors"), *source]
    output = ["--details", "--save-predictions", "--output", str(tmp_path / "test")]

    assert main([*given, "--no-latency", *output]) == 0

    rows = read(tmp_path / "test" / "plain.predictions.csv")
    wrong = [row for row in rows if row["correct"] == "False" and row["prediction"]]
    assert len(wrong) > 6
    picture = read_picture(tmp_path / "test" / "plain.mistakes.png")
    corners = []
    for row in sorted(wrong, key=lambda row: -float(row["probability"])):
        video = root / "videos" / f"{Path(row['path']).stem}.mp4"
        for frame in decode(video, [2, 6, 10]):  # the middles of three thirds of 12 frames
            inside = frame[2:-2, 2:-2].permute(2, 0, 1)  # 32 of 36 pixels
            (corner,) = places(picture, enlarged(inside, 3))
            corners.append(corner)
    assert corners == sorted(corners)


# Two gloo processes test two networks and their ensemble.
PARALLEL = """
import os, sys
import torch, torch.distributed as dist
from ffn.cli.arguments import names_of
from ffn.cli.test import main

torch.set_num_threads(1)
torch.cuda.is_available = lambda: False
store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
children = []
for rank in (0, 1):
    child = os.fork()
    if not child:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os._exit(main(sys.argv[1:]))
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.slow
def test_ensemble_of_two_processes_is_that_of_one(root: Path, tmp_path: Path) -> None:
    weights = [str(root / f"{name}.safetensors") for name in ("plain", "other")]
    given = [str(root / "config.yaml"), "--weights", *weights, "--no-latency", "--ensemble"]
    written = ["--save-predictions", "--details"]

    found = subprocess.run(
        [sys.executable, "-c", PARALLEL, *given, *written, "--output", tmp_path / "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert main([*given, *written, "--output", str(tmp_path / "1")]) == 0

    assert found.stdout.count("results.json") == 1
    files = sorted(file.name for file in (tmp_path / "1").iterdir())
    assert len(files) == 3 + 3 * 7
    assert files == sorted(file.name for file in (tmp_path / "2").iterdir())
    for name in [name for name in files if name.endswith(("classes.csv", "mistakes.png"))]:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    alone, together = (load_table(tmp_path / n / "results.json")[2] for n in "12")
    assert together.rows == alone.rows
    assert together.measured["networks"] == ["plain", "other"]
    kept = [load_predictions(tmp_path / n / "ensemble.predictions.safetensors") for n in "12"]
    torch.testing.assert_close(kept[0].logits[3], kept[1].logits[3], equal_nan=True)


def test_frames_can_be_shuffled(root: Path, tmp_path: Path) -> None:
    given = [str(root / "config.yaml"), "--weights", str(root / "plain.safetensors")]
    given += ["--frames", "1", "6", "--no-latency", "--save-predictions"]

    found = {}
    for name, more in {"plain": [], "shuffled_plain": ["--shuffle-frames"]}.items():
        assert main([*given, "--output", str(tmp_path / name), *more]) == 0
        found[name] = load_predictions(tmp_path / name / f"{name}.predictions.safetensors")

    sweep = load_table(tmp_path / "shuffled_plain" / "results.json")[0]
    assert sweep.name == "shuffled/plain"
    ordered, shuffled = (kept.logits for kept in found.values())
    assert torch.equal(found["plain"].label, found["shuffled_plain"].label)
    assert torch.equal(ordered[1].nan_to_num(), shuffled[1].nan_to_num())
    assert not torch.allclose(ordered[6].nan_to_num(), shuffled[6].nan_to_num(), atol=1e-4)
    assert found["plain"].weights_sha256 is not None
    assert found["shuffled_plain"].weights_sha256 is None  # no early exit is fitted to these


def test_counts_between_two_are_interpolated_if_wanted(root: Path, tmp_path: Path) -> None:
    """The record of the weights decides, unless an option does."""
    config, found = str(root / "config.yaml"), {}
    model = ffn.load(root / "flexible.safetensors")
    record = yaml.safe_load((root / "flexible.yaml").read_text())
    save_weights(model, tmp_path / "own.safetensors", record | {"name": "own", "interpolate": True})
    for name, weights, options in (
        ("nearest", root / "flexible.safetensors", []),
        ("on", root / "flexible.safetensors", ["--interpolate"]),
        ("recorded", tmp_path / "own.safetensors", []),
        ("off", tmp_path / "own.safetensors", ["--no-interpolate"]),
    ):
        output = ["--no-latency", "--save-predictions", "--output", str(tmp_path / name)]
        command = [config, "--weights", str(weights), "--frames", "2", "3", *options, *output]
        assert main(command) == 0
        (network,) = load_table(tmp_path / name / "results.json")
        (file,) = (tmp_path / name).glob("*.predictions.safetensors")
        found[name] = (
            [row.subnet for row in network.rows],
            network.name,
            load_predictions(file).logits[3].nan_to_num(),
        )

    assert {name: (subnets, called) for name, (subnets, called, _) in found.items()} == {
        "nearest": ([2, 4], "flexible"),
        "on": ([2, 3], "interpolated/flexible"),
        "recorded": ([2, 3], "own"),
        "off": ([2, 4], "nearest/own"),
    }
    assert torch.equal(found["on"][-1], found["recorded"][-1])
    assert torch.equal(found["off"][-1], found["nearest"][-1])


def test_networks_without_shared_weights_are_not_interpolated(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = yaml.safe_load((root / "flexible.yaml").read_text())
    model = convert(
        create_model("tsm_tiny", num_classes=record["num_classes"]), (2, 4), private="all"
    )
    separate = record | {"name": "separate", "private": "all"}
    save_weights(model, tmp_path / "separate.safetensors", separate)
    command = [str(root / "config.yaml"), "--weights", str(tmp_path / "separate.safetensors")]

    assert main([*command, "--interpolate", "--no-latency", "--output", str(tmp_path)]) == 2

    assert "shares no weights (private: all); drop --interpolate" in capsys.readouterr().err


def test_overrides_and_the_frames_of_the_config_are_used(root: Path, tmp_path: Path) -> None:
    config, weights = str(root / "config.yaml"), str(root / "plain.safetensors")

    status = main([config, "--weights", weights, "--output", str(tmp_path), "data.workers=0"])

    assert status == 0
    assert [row.frames for row in load_table(tmp_path / "results.json")[0].rows] == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "tsm_tinny"], 'no weights "tsm_tinny"'),
        (["data.on_error=fail", "--weights", "{root}/plain.safetensors"], "val"),
        (
            ["data.on_error=fail", "data.workers=1", "--weights", "{root}/plain.safetensors"],
            "; set data.on_error=skip, or take the video out of the list",
        ),
        (["data.rot=x", "--weights", "{root}/plain.safetensors"], "did you mean data.root"),
    ],
)
def test_errors_are_printed_in_one_line(
    root: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(root=root) for argument in arguments]

    assert main([str(root / "config.yaml"), *given, "--overwrite"]) == 2

    error = capsys.readouterr().err
    assert error.startswith("test.py: ")
    assert error.count("\n") == 1
    assert message in error


def test_zero_frames_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(root / "config.yaml"), "--weights", "w", "--frames", "0"])

    assert "is not an integer of 1 or more" in capsys.readouterr().err


def test_more_frames_than_memory_holds_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(root / "config.yaml"), "--weights", "w", "--frames", "4", "999999"])

    message = "999,999 frames per clip; at most 4,096 are accepted (raise the limit with"
    assert message in " ".join(capsys.readouterr().err.split())


# Two gloo processes test a network; rank 1 fails in the sweep, and rank 0 waits for its results.
SCRIPT = """
import json, os, signal, sys, tempfile, time
import torch, torch.distributed as dist
import ffn.evaluation
from ffn.cli.arguments import names_of
from ffn.cli.test import main

arguments = sys.argv[1:]
torch.set_num_threads(1)
torch.cuda.is_available = lambda: False
store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"

def memory(): raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
def collective(): raise dist.DistBackendError("NCCL error: unhandled system error")
def killed(): os.kill(os.getpid(), signal.SIGKILL)

def fail(*_, **__):
    time.sleep(0.3)
    case()

for case in (memory, collective, killed):
    started, children, log = time.monotonic(), [], tempfile.TemporaryFile("w+")
    for rank in (0, 1):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.dup2(log.fileno(), 2)
            if rank == 1: ffn.evaluation.sweep = fail
            os._exit(main(arguments))
        children.append(child)
    status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    log.seek(0)
    lines = [line for line in log.read().splitlines() if not line.startswith("[Gloo]")]
    print("\\n" + json.dumps([case.__name__, status, time.monotonic() - started, lines]))
"""


@pytest.mark.slow
def test_failure_of_one_process_ends_both_with_one_message(root: Path) -> None:
    given = [str(root / "config.yaml"), "--weights", str(root / "flexible.safetensors")]
    found = subprocess.run(
        [sys.executable, "-uc", SCRIPT, *given, "--no-latency", "--overwrite"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )

    lines = [line for line in found.stdout.splitlines() if line.startswith('["')]
    cases = {name: result for name, *result in map(json.loads, lines)}
    expected = {
        "memory": ([2, 2], "test.py, process 1: 16 videos need more memory than there is: lower "),
        "collective": ([2, 2], "test.py, process 1: another process of the run has ended or did "),
        "killed": ([2, -9], "test.py, process 0: another process of the run has ended or did "),
    }
    assert set(cases) == set(expected)
    for name, (statuses, message) in expected.items():
        status, seconds, printed = cases[name]
        assert status == statuses, name
        assert seconds < 60
        assert len(printed) == 1, printed
        assert printed[0].startswith(message)


def test_config_errors_are_printed_by_one_process(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")

    assert main([str(root / "config.yaml"), "data.rot=x", "--weights", "w"]) == 2

    assert not capsys.readouterr().err
