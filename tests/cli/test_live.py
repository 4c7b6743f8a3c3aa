"""The live command: formats, log and figure, and refused options."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serve_files import save_network, write_video

from ffn.cli.live import main
from ffn.serve import Predictor
from ffn.serve.live import figure as figure_module
from ffn.serve.live.figure import read_live_log, save_live_figure

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("weights")
    return str(save_network(folder / "tiny.safetensors", spread=0.1))


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> str:
    """Six seconds."""
    frames = np.random.default_rng(3).integers(0, 256, (60, 40, 48, 3), np.uint8)
    return str(write_video(tmp_path_factory.mktemp("videos") / "a.mp4", frames, rate=10))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))


def live(capsys, weights, *words: object) -> tuple[int, str, str]:
    status = main([*map(str, words), "--weights", weights, "--precision", "fp32"])
    return status, *capsys.readouterr()


def test_json_lines_are_the_windows_of_the_file(capsys, weights, video) -> None:
    words = (video, "--speed", 10, "--window", 2, "--step", 1, "--frames", 4, "--top", 2)
    status, out, err = live(capsys, weights, *words, "--format", "json")

    assert status == 0
    assert re.fullmatch(r"live\.py: 6\.0 s, 60 frames, 0 of them dropped; 5 answers, 0 .*\n", err)
    found = [json.loads(line) for line in out.splitlines()]
    predictor = Predictor(weights, precision="fp32")
    windows = list(predictor.windows(video, 2.0, step=1.0, frames=4, batch_size=1))
    for line, window in zip(found, windows, strict=True):
        assert [(x["label"], x["probability"]) for x in line["labels"]] == window.top(2)
        assert (line["start"], line["end"]) == pytest.approx((window.start, window.end))
        assert (line["frames"], line["sub_network"], line["network"]) == (4, 4, "fused, fp32")
        assert line["latency_ms"] >= line["taken_ms"] > 0
        assert line["interval_ms"] == pytest.approx(100, abs=1)
        assert line["memory_mib"] > 50
        assert line["kept_bytes"] == 20 * 3 * 32 * 32
    assert found[0]["changed"]
    assert found[0]["shown"] == found[0]["labels"][:1]


def test_text_has_a_line_per_change_of_the_label(capsys, weights, video, tmp_path) -> None:
    log, figure = tmp_path / "out/log.jsonl", tmp_path / "out/live.png"
    words = (video, "--speed", 10, "--every", 5, "--frames", 2, "--smooth", 0, "--margin", 0)
    status, out, _ = live(capsys, weights, *words, "--log", log, "--figure", figure)

    assert status == 0
    entries = read_live_log(log)
    changes = [e for e in entries if e["changed"]]
    expected = [
        f"0:00:{e['time']:04.1f}  {e['shown'][0]['label']}  {e['shown'][0]['probability']:.0%}"
        for e in changes
    ]
    assert out.splitlines() == expected
    with Image.open(figure) as image:
        assert image.size == (1200, 1200)

    before = log.read_bytes()
    status, out, err = live(capsys, weights, *words, "--log", log)
    assert (status, out) == (2, "")
    assert err.endswith("log.jsonl exists; choose another --log, or add --overwrite\n")
    assert log.read_bytes() == before


def test_a_file_may_repeat_until_a_time(capsys, weights, video) -> None:
    words = (video, "--speed", 20, "--repeat", "--duration", 9, "--frames", 2, "--format", "json")
    status, out, _ = live(capsys, weights, *words)
    times = [json.loads(line)["time"] for line in out.splitlines()]
    assert status == 0
    assert times[-1] == pytest.approx(8.9)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["missing.mp4"], 1, "missing.mp4: no such file or folder"),
        (["97"], 1, "/dev/video97: no such camera; `ls /dev/video*` lists them"),
        (["{video}", "--attempts", "3"], 2, "attempts is 3; it is for a camera or an address"),
        (["rtsp://h/1", "--speed", "2"], 2, "speed is 2.0; it is for a video file"),
        (["{video}", "--figure", "a.png"], 2, "--figure is a.png; it needs --log, which it is"),
        (
            ["{video}", "--log", "{log}", "--figure", "{log}.xyz"],
            2,
            "jsonl.xyz; expected a file with one of the suf",
        ),
        (["{video}", "--log", "{log}", "--figure", "live"], 2, "--figure is live; expected a file"),
        (["{video}", "--every", "8", "--step", "1"], 2, "--step: not allowed with argument --ev"),
        (["{video}", "--input-option", "a"], 2, "'a' is not KEY=VALUE, as rtsp_transport=udp"),
        (["{video}", "--frames", "0"], 2, "'0' is not an integer of 1 or more, nor \"auto\""),
        (["{video}", "--smooth", "-1"], 2, "'-1' is not a number of 0 or more"),
        (["{video}", "--window", "1e-9"], 2, "window is 1e-09 s; expected 0.001 s or more"),
        (
            ["{video}", "--log", "{log}", "--figure", "{folder}/../{name}/log.jsonl"],
            2,
            "log.jsonl; name two files",
        ),
    ],
)
def test_refused(capsys, tmp_path, weights, video, words, status, message) -> None:
    places = {"log": tmp_path / "log.jsonl", "folder": tmp_path, "name": tmp_path.name}
    words = [word.format(video=video, **places) for word in words]
    try:
        found = main([*words, "--weights", weights, "--precision", "fp32"])
    except SystemExit as error:
        found = error.code
    out, err = capsys.readouterr()
    assert (found, out) == (status, "")
    assert message in err


def test_what_is_read_is_never_overwritten(capsys, weights, video, tmp_path) -> None:
    source = tmp_path / "a.mp4"
    shutil.copy(video, source)
    before = source.read_bytes(), Path(weights).read_bytes()
    for path in (source, weights):
        status, _, err = live(capsys, weights, source, "--log", path, "--overwrite")
        assert status == 2
        assert f"{path} is what the command reads; choose another --log" in err
    assert (source.read_bytes(), Path(weights).read_bytes()) == before


def test_a_log_of_another_call_is_not_drawn(capsys, video, tmp_path) -> None:
    """Wrong weights are reported, and the files that would be replaced are kept."""
    answer = {"time": 1.0, "frames": 4, "latency_ms": 5.0, "interval_ms": None, "skipped": 0}
    answer |= {"dropped": 0, "kept_bytes": 0, "memory_mib": 800.0}
    for content in ("notes\n", json.dumps(answer) + "\n"):
        log, figure = tmp_path / "notes.txt", tmp_path / "f.png"
        log.write_text(content)
        words = (video, "--log", log, "--figure", figure, "--overwrite")
        status, _, err = live(capsys, "typo_name", *words)
        assert status == 2
        assert "typo_name" in err
        assert log.read_text() == content
        assert not figure.exists()


def test_the_figure_of_a_few_answers_without_a_miss(tmp_path, monkeypatch) -> None:
    drawn = []
    real = figure_module.new_figure
    monkeypatch.setattr(
        figure_module, "new_figure", lambda *size: drawn.append(real(*size)) or drawn[-1]
    )
    answer = {"frames": 4, "latency_ms": 5.0, "interval_ms": None, "skipped": 0, "dropped": 0}
    answer |= {"kept_bytes": 0, "memory_mib": 800.0}
    answers = [answer | {"time": 1.0}, answer | {"time": 2.0, "interval_ms": 250.0}]

    save_live_figure(answers, tmp_path / "live.png")

    latency, _, missed, memory = drawn[0].axes
    (legend,) = latency.get_legend().get_texts()
    assert legend.get_text() == "until the next answer is due: 250 ms in the median"
    assert [tick for tick in missed.get_yticks() if 0 <= tick <= 1] == [0, 1]
    for axes in (missed, memory):  # a line at 0 is not on the edge
        assert axes.get_ylim()[0] < 0


def test_a_log_without_answers_or_of_something_else(tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "connected", "message": "a"}\n{"time": 1.0, "fra')
    assert read_live_log(path) == [{"event": "connected", "message": "a"}]
    with pytest.raises(ValueError, match="the log has no answer, so there is nothing to draw"):
        save_live_figure(read_live_log(path), tmp_path / "a.png")
    path.write_text('{"loss": 1}\n{"event": "x"}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl:1: no line of a log of live prediction"):
        read_live_log(path)


@pytest.mark.slow
def test_ctrl_c_and_the_status_of_a_terminal(weights, video, tmp_path) -> None:
    """The status is on the terminal alone; the figure is drawn also after Ctrl-C."""
    log, figure = tmp_path / "log.jsonl", tmp_path / "live.png"
    words = [video, "--weights", weights, "--repeat", "--every", "5", "--frames", "2"]
    words += ["--log", str(log), "--figure", str(figure)]
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ffn", "live", *words],
        stdout=subprocess.PIPE,
        stderr=end,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    os.close(end)
    shown = io.BytesIO()
    reader = threading.Thread(target=copy_terminal, args=(terminal, shown), daemon=True)
    reader.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.exists() or log.stat().st_size < 5000):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    reader.join(10)
    text = shown.getvalue().decode()

    assert process.returncode == 130
    assert re.match(r"0:00:0\d\.\d  (up|down|still)  \d+%\n", out)
    assert "\x1b" not in out
    assert re.search(
        r"\r\x1b\[K0:00:0\d\.\d  \w+ \d+%  2 frames, sub-network 2  \d+ ms  drop", text
    )
    assert re.search(r"live\.py: .* answers, 0 skipped; latency", text)
    assert "live.py: interrupted; the same command starts again" in text
    assert figure.exists()


def copy_terminal(terminal: int, shown: io.BytesIO) -> None:
    try:
        while chunk := os.read(terminal, 4096):
            shown.write(chunk)
    except OSError:  # the other end was closed
        os.close(terminal)


@pytest.mark.slow
def test_a_load_lowers_the_number_of_frames(tmp_path, figure) -> None:
    """The example, for a minute of wall time on one core; other processes run in its middle."""
    example, folder = ROOT / "examples/live_under_load.py", str(tmp_path)
    process = subprocess.run(
        [sys.executable, example, "--minutes", "2", "--folder", folder],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.returncode == 0, process.stderr
    log = read_live_log(tmp_path / "live.jsonl")
    figure("totals", process.stderr.strip().splitlines()[-1].removeprefix("live.py: "))

    def frames(start: float, end: float) -> float:
        return float(np.mean([e["frames"] for e in log if start <= e["time"] < end]))

    loaded, after = frames(50, 80), frames(105, 120)
    assert loaded < 12
    assert after >= loaded  # a simulated clock shows the rise; a slow machine has no time for it
    assert max(e["latency_ms"] for e in log) < 3000
    assert max(e["memory_mib"] for e in log) < 1.05 * log[50]["memory_mib"]
    assert (tmp_path / "live.png").exists()
