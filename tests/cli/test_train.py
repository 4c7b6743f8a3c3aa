"""The command ``tools/train.py``: help, errors, exit status."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))  # for `engine_toys`

from engine_toys import options, write_videos

from ffn.cli.train import main
from ffn.engine.config_help import option_help


@pytest.fixture
def empty(tmp_path: Path) -> str:
    path = tmp_path / "empty.yaml"
    path.write_text("{}")
    return str(path)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_videos(tmp_path_factory.mktemp("videos"))


def test_help_has_all_options(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("usage: train.py")
    assert option_help() in shown


def test_help_is_wrapped_to_the_terminal(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert option_help().split() == shown.partition("defaults:")[2].split()


def test_help_has_the_options_of_imported_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from ffn.engine.tasks import TASKS

    (tmp_path / "helped_package.py").write_text(
        "from ffn.engine.tasks import PlainTask, register_task\n"
        "@register_task('helped')\n"
        "class Helped(PlainTask): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        assert main(["--help", "imports=[helped_package]"]) == 0
    finally:
        TASKS._entries.pop("helped", None)
    assert "registered task (flexible, helped, mixed_sampling, plain" in capsys.readouterr().out

    assert main(["--help", "imports=[no_such_package]"]) == 2
    assert "cannot import 'no_such_package'" in capsys.readouterr().err


def test_run(videos: Path, empty: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([empty, *options(videos, tmp_path / "run", "train.epochs=1")]) == 0
    assert f"best network: {tmp_path / 'run/best.pt'}" in capsys.readouterr().out


def test_a_run_starts_from_weights_of_other_frame_counts(
    videos: Path, empty: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given = ["train.epochs=1", "model.weights=tsm_tiny.motion_f4_8_16", "model.name=tsm_tiny"]
    given += ["task.frames=[2,6]", "--device", "cpu"]

    assert main([empty, *options(videos, tmp_path / "run", *given)]) == 0
    assert "frame counts: 2 from 4, 6 from 8 (the nearest trained)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "no config file missing.yaml"),
        (["EMPTY", "train.epoch=1"], "did you mean train.epochs?"),
        (["EMPTY", "train.accumulate=2"], "option train.accumulate is now train.grad_accum_steps"),
        (["EMPTY", "data.root=/nowhere", "log.output=OUT"], "/nowhere"),
        (["EMPTY", "task.name=plain"], "plain trains exactly one"),
    ],
)
def test_error_is_one_line(
    empty: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    arguments: list[str],
    message: str,
) -> None:
    given = [a.replace("EMPTY", empty).replace("OUT", str(tmp_path / "run")) for a in arguments]

    assert main(given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("train.py: ")
    assert len(error.splitlines()) == 1


def test_all_problems_of_a_config_are_printed(empty: str, capsys: pytest.CaptureFixture) -> None:
    assert main([empty, "train.epochs=0", "task.name=plian", "data.reader=pyav"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [" ".join(line.split()[:2]) for line in lines] == [
        "train.py: task.name:",
        "command line:",
        "train.epochs is",
    ]


def test_missing_config_is_a_usage_error(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "CONFIG is missing" in capsys.readouterr().err


def test_broken_video_is_named(empty: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "videos").mkdir()
    folder = write_videos(tmp_path / "videos", train=6, val=3)
    (folder / "train_3.mp4").write_bytes(b"no video")

    assert main([empty, *options(folder, tmp_path / "run")]) == 2
    assert "train_3.mp4" in capsys.readouterr().err


def test_full_disk_under_the_log(
    videos: Path, empty: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/log.jsonl").symlink_to("/dev/full")

    assert main([empty, *options(videos, tmp_path / "run")]) == 2
    assert "No space left on device" in capsys.readouterr().err
