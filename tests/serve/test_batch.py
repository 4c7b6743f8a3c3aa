"""Lists of videos: their table, several processes, interruptions, and videos that end a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from serve_files import At, Blocks, Ends, save_network, write_video
from tables import read_csv as rows_of

from ffn.serve import Predictor
from ffn.serve.batch import BatchResult, predict_batch, read_videos
from ffn.serve.prediction import NotFiniteError

ROOT = Path(__file__).parents[2]
BROKEN = {"empty.mp4": "the file is empty (0 bytes)", "missing.mp4": "no such file or folder"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Ten videos of different lengths and sizes, two broken ones, and their list."""
    folder = tmp_path_factory.mktemp("videos")
    random = np.random.default_rng(2)
    for number in range(10):
        shape = (3 + 2 * number, 40, 48 + 2 * (number % 2), 3)
        pixels = random.integers(0, 256, shape, dtype=np.uint8)
        write_video(folder / f"v{number}.mp4", pixels, rate=10)
    (folder / "empty.mp4").touch()
    names = [f"v{number}.mp4" for number in range(10)]
    names[2:2] = ["empty.mp4"]
    names[7:7] = ["missing.mp4"]
    (folder / "list.txt").write_text("\n".join(names) + "\n")
    return folder


def run(folder, output, weights, frames=4, name="list.txt", kind=Predictor, **more) -> BatchResult:
    def build(_):
        return kind(weights, precision="fp32")

    given, choice = read_videos(folder / name), {"frames": frames}
    return predict_batch(build, given, output, choice, labels=2, batch_size=3, **more)


class Stop(Exception):
    pass


def stopped(folder, output, weights, after) -> None:
    def stop(done, total):
        if done == after:
            raise Stop

    with pytest.raises(Stop):
        run(folder, output, weights, progress=stop)


def test_paths_of_a_list(tmp_path) -> None:
    """Addresses are not paths below the folder of the list."""
    (tmp_path / "list.txt").write_text("https://host/a.mp4\ns3://bucket/b.mp4\nc/d.mp4\n")
    assert [(name, record.path) for name, record in read_videos(tmp_path / "list.txt")] == [
        ("https://host/a.mp4", "https://host/a.mp4"),
        ("s3://bucket/b.mp4", "s3://bucket/b.mp4"),
        ("c/d.mp4", str(tmp_path / "c/d.mp4")),
    ]


def test_rows_are_those_of_the_predictor(weights, folder, tmp_path) -> None:
    result = run(folder, tmp_path / "out.csv", weights)

    assert result == BatchResult(videos=12, kept=0, errors=2)
    rows = rows_of(tmp_path / "out.csv")
    assert [row["path"] for row in rows] == (folder / "list.txt").read_text().split()
    predictor = Predictor(weights, precision="fp32")
    for row in rows:
        if row["path"] in BROKEN:
            assert row["error"] == BROKEN[row["path"]]
            assert {v for k, v in row.items() if k not in ("path", "error")} == {""}
            continue
        (label, first), (second, other) = predictor(folder / row["path"], frames=4).top(2)
        assert (row["label"], row["label_2"]) == (label, second)
        assert float(row["probability"]) == pytest.approx(first, abs=1e-5)
        assert float(row["probability_2"]) == pytest.approx(other, abs=1e-5)
        assert (row["frames"], row["sub_network"], row["error"]) == ("4", "4", "")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_a_call_goes_on_where_a_stopped_one_ended(weights, folder, tmp_path) -> None:
    run(folder, tmp_path / "a.csv", weights)
    stopped(folder, tmp_path / "c.csv", weights, after=6)
    assert not (tmp_path / "c.csv").exists()
    parts = tmp_path / "c.csv.parts"
    assert {path.name for path in parts.glob("*.csv")} == {"0.csv", "1.csv"}
    (parts / ".nfs01").touch()  # as NFS leaves one of each file that is open

    assert run(folder, tmp_path / "c.csv", weights) == BatchResult(videos=12, kept=6, errors=2)
    assert (tmp_path / "c.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()
    assert [path.name for path in parts.iterdir()] == [".nfs01"]


def test_columns_of_the_list_and_the_number_of_frames(weights, folder, tmp_path) -> None:
    """Parts of videos; frames by the duration; other columns do not matter."""
    text = "label,path,start,end\nx,v9.mp4,0.5,1.2\n,v9.mp4,,\nx,v9.mp4,7,8\nx,v0.mp4,,\n"
    (folder / "parts.csv").write_text(text)
    run(folder, tmp_path / "out.csv", weights, "auto", name="parts.csv")
    part, whole, beyond, short = rows_of(tmp_path / "out.csv")
    assert (part["start"], part["end"], whole["start"]) == ("0.5", "1.2", "")
    assert part["probability"] != whole["probability"]
    assert "no frame in the part" in beyond["error"]
    assert [row["frames"] for row in (part, whole, short)] == ["6", "12", "3"]

    for name, text in {"wrong.csv": "label,video_name\nx,v1.mp4\n", "none.txt": "\n"}.items():
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=name):
            read_videos(folder / name)


def test_another_call_that_does_not_fit_is_refused(weights, folder, tmp_path) -> None:
    output = tmp_path / "out.csv"
    stopped(folder, output, weights, after=3)
    other = save_network(tmp_path / "other.safetensors", spread=0.2)
    (tmp_path / "list.txt").write_text((folder / "list.txt").read_text())
    with pytest.raises(ValueError, match="another value of: frames"):
        run(folder, output, weights, frames=8)
    with pytest.raises(ValueError, match="another value of: weights"):
        run(folder, output, other)
    with pytest.raises(ValueError, match="another value of: list of videos"):
        run(tmp_path, output, weights)


def test_two_calls_at_once_are_refused(weights, folder, tmp_path) -> None:
    output = tmp_path / "out.csv"

    def call_again(done, total):
        if done == 3:
            with pytest.raises(ValueError, match="another call writes"):
                run(folder, output, weights)

    assert run(folder, output, weights, progress=call_again).kept == 0


def test_logits_that_are_not_finite_are_a_row_with_the_cause(weights, folder, tmp_path) -> None:
    """As those of fp16 that overflow."""

    class Overflowing(Predictor):
        def predict(self, clips):
            if any(clip.name.endswith(("v1.mp4", "v6.mp4")) for clip in clips):
                raise NotFiniteError("the logits are NaN")
            return super().predict(clips)

    assert run(folder, tmp_path / "nan.csv", weights, kind=Overflowing).errors == 4
    named = [row["path"] for row in rows_of(tmp_path / "nan.csv") if "NaN" in row["error"]]
    assert named == ["v1.mp4", "v6.mp4"]


@pytest.mark.slow
def test_workers_and_a_video_that_ends_or_blocks_one(
    weights, folder, tmp_path, monkeypatch
) -> None:
    run(folder, tmp_path / "a.csv", weights)
    assert run(folder, tmp_path / "b.csv", weights, workers=2, timeout=5).errors == 2
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()

    plain = Predictor(weights).reader(4)
    for does, cause in ((Ends(), "ended the process"), (Blocks(), "took more than 5 s")):
        # The video v4 has 11 frames.
        chosen = replace(plain, choose=At(11, does, plain.choose))
        monkeypatch.setattr(Predictor, "reader", lambda *_, chosen=chosen, **options: chosen)
        started = time.monotonic()
        assert run(folder, tmp_path / "c.csv", weights, workers=2, timeout=5).errors == 3
        assert time.monotonic() - started < 60
        pairs = zip(rows_of(tmp_path / "c.csv"), rows_of(tmp_path / "a.csv"), strict=True)
        for row, expected in pairs:
            if row["path"] == "v4.mp4":
                assert cause in row["error"]
            else:
                assert row["path"] == expected["path"]
                assert row["label"] == expected["label"]


@pytest.mark.slow
def test_two_processes_that_are_killed_and_one_that_goes_on(weights, folder, tmp_path) -> None:
    names = (folder / "list.txt").read_text().split() * 20
    (folder / "many.txt").write_text("\n".join(names) + "\n")
    output = tmp_path / "out.csv"
    words = [ROOT / "tools/predict.py", folder / "many.txt", "--weights", weights]
    words += ["--output", output, "--frames", "4", "--top", "2", "--batch-size", "3"]
    words = [*map(str, words), "--workers", "0", "--precision", "fp32"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process = subprocess.Popen([*start, *words], env=env)
    parts = tmp_path / "out.csv.parts"
    while len([*parts.glob("*.csv")]) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    for number in (process.pid, *map(int, children)):
        os.kill(number, signal.SIGKILL)
    process.wait()
    assert not output.exists()

    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "of them by an earlier call" in done.stdout
    run(folder, tmp_path / "undisturbed.csv", weights, name="many.txt")
    assert output.read_bytes() == (tmp_path / "undisturbed.csv").read_bytes()
