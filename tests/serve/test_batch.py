"""Lists of videos: their table, several processes, interruptions, and videos that end a worker."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from serve_files import At, Blocks, Ends, save_network, write_video

from ffn.serve import Predictor
from ffn.serve.batch import BatchOptions, BatchResult, VideoList, predict_batch
from ffn.serve.prediction import NotFiniteError

ROOT = Path(__file__).parents[2]
OPTIONS = BatchOptions(frames=4, labels=2, batch_size=3)
BROKEN = {"empty.mp4": "the file is empty (0 bytes)", "missing.mp4": "no such file or folder"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return save_network(tmp_path_factory.mktemp("weights") / "tiny.safetensors", spread=0.1)


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


def run(
    folder, output, weights, options=OPTIONS, name="list.txt", precision="fp32", **more
) -> BatchResult:
    def build(settled):
        return Predictor(weights, precision=settled or precision)

    return predict_batch(build, VideoList.read(folder / name), output, options, **more)


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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
    videos = VideoList.read(tmp_path / "list.txt")
    paths = [record.path for record in videos.records]
    assert paths == ["https://host/a.mp4", "s3://bucket/b.mp4", str(tmp_path / "c/d.mp4")]
    assert videos.names == ["https://host/a.mp4", "s3://bucket/b.mp4", "c/d.mp4"]


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
    (part,) = parts.glob("rows-*")
    assert len(part.read_text().splitlines()) == 2
    part.write_text(part.read_text()[:-20])  # the last line is cut, as by a power failure
    (parts / ".nfs01").touch()  # as NFS leaves one of each file that is open

    assert run(folder, tmp_path / "c.csv", weights) == BatchResult(videos=12, kept=3, errors=2)
    assert (tmp_path / "c.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()
    assert [path.name for path in parts.iterdir()] == [".nfs01"]


def test_columns_of_the_list_and_the_number_of_frames(weights, folder, tmp_path) -> None:
    """Parts of videos; frames by the duration; other columns do not matter."""
    text = "label,path,start,end\nx,v9.mp4,0.5,1.2\n,v9.mp4,,\nx,v9.mp4,7,8\nx,v0.mp4,,\n"
    (folder / "parts.csv").write_text(text)
    options = replace(OPTIONS, frames="auto")
    run(folder, tmp_path / "out.csv", weights, options, name="parts.csv")
    part, whole, beyond, short = rows_of(tmp_path / "out.csv")
    assert (part["start"], part["end"], whole["start"]) == ("0.5", "1.2", "")
    assert part["probability"] != whole["probability"]
    assert "no frame in the part" in beyond["error"]
    assert [row["frames"] for row in (part, whole, short)] == ["6", "12", "3"]

    for name, text in {"wrong.csv": "label,video_name\nx,v1.mp4\n", "none.txt": "\n"}.items():
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=name):
            VideoList.read(folder / name)


def test_parquet_has_the_rows_of_csv(weights, folder, tmp_path) -> None:
    for name in ("out.csv", "out.parquet"):
        run(folder, tmp_path / name, weights)
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for row, expected in zip(table, rows_of(tmp_path / "out.csv"), strict=True):
        for name, value in row.items():
            if isinstance(value, float):
                assert value == pytest.approx(float(expected[name]), abs=1e-6)
            else:
                assert str("" if value is None else value) == expected[name]


def test_another_call_that_does_not_fit_is_refused(weights, folder, tmp_path) -> None:
    output = tmp_path / "out.csv"
    stopped(folder, output, weights, after=3)
    other = save_network(tmp_path / "other.safetensors", spread=0.2)
    (tmp_path / "list.txt").write_text((folder / "list.txt").read_text())
    with pytest.raises(ValueError, match="another value of: frames"):
        run(folder, output, weights, replace(OPTIONS, frames=8))
    with pytest.raises(ValueError, match="another value of: weights"):
        run(folder, output, other)
    with pytest.raises(ValueError, match="another value of: list of videos"):
        run(tmp_path, output, weights)
    with pytest.raises(ValueError, match=r"\*\.parquet"):
        run(folder, tmp_path / "out.txt", weights)


def test_logits_that_are_not_finite_are_a_row_with_the_cause(weights, folder, tmp_path) -> None:
    """As those of fp16 that overflow."""

    class Overflowing(Predictor):
        def predict(self, clips):
            if any(clip.name.endswith(("v1.mp4", "v6.mp4")) for clip in clips):
                raise NotFiniteError("the logits are NaN")
            return super().predict(clips)

    videos = VideoList.read(folder / "list.txt")
    output = tmp_path / "nan.csv"
    result = predict_batch(
        lambda _: Overflowing(weights, precision="fp32"), videos, output, OPTIONS
    )

    assert result.errors == 4
    for row in rows_of(output):
        if row["path"] in ("v1.mp4", "v6.mp4"):
            assert "NaN" in row["error"]
        else:
            assert (row["error"] == "") == (row["path"] not in BROKEN)


@pytest.mark.slow
def test_workers_and_a_video_that_ends_or_blocks_one(
    weights, folder, tmp_path, monkeypatch
) -> None:
    run(folder, tmp_path / "a.csv", weights)
    options = replace(OPTIONS, workers=2, timeout=5)
    assert run(folder, tmp_path / "b.csv", weights, options).errors == 2
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()

    for does, cause in ((Ends(), "ended the process"), (Blocks(), "took more than 5 s")):
        # The video v4 has 11 frames.
        plain = Predictor(weights).reader(4)
        chosen = replace(plain, choose=At(11, does, plain.choose))
        monkeypatch.setattr("ffn.serve.batch._reader", lambda *_, chosen=chosen: chosen)
        started = time.monotonic()
        assert run(folder, tmp_path / "c.csv", weights, options).errors == 3
        assert time.monotonic() - started < 60
        pairs = zip(rows_of(tmp_path / "c.csv"), rows_of(tmp_path / "a.csv"), strict=True)
        for row, expected in pairs:
            if row["path"] == "v4.mp4":
                assert cause in row["error"]
            else:
                assert row["path"] == expected["path"]
                assert row["label"] == expected["label"]


def command(folder, output, weights, *, processes=1, name="list.txt") -> list[str]:
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    words = [str(folder / name), "--weights", str(weights), "--output", str(output)]
    options = ["--frames", "4", "--top", "2", "--batch-size", "3", "--workers", "1"]
    return [*start, str(ROOT / "tools/predict.py"), *words, *options, "--precision", "fp32"]


@pytest.mark.slow
def test_two_processes_write_the_rows_of_one(weights, folder, tmp_path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for processes in (1, 2):
        words = command(folder, tmp_path / f"{processes}.csv", weights, processes=processes)
        subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()
    assert len(rows_of(tmp_path / "1.csv")) == 12


@pytest.mark.slow
def test_a_call_that_is_killed_three_times_ends_with_the_same_rows(
    weights, folder, tmp_path
) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    names = (folder / "list.txt").read_text().split() * 60
    (folder / "many.txt").write_text("\n".join(names) + "\n")
    words = command(folder, tmp_path / "out.csv", weights, name="many.txt")
    parts, before = tmp_path / "out.csv.parts", 0
    for _ in range(3):
        process = subprocess.Popen(words, env=env, start_new_session=True)
        while sum(p.stat().st_size for p in parts.glob("rows-*")) <= before:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before = sum(p.stat().st_size for p in parts.glob("rows-*"))
    assert not (tmp_path / "out.csv").exists()
    subprocess.run(words, env=env, check=True)
    words[words.index(str(tmp_path / "out.csv"))] = str(tmp_path / "undisturbed.csv")
    subprocess.run(words, env=env, check=True)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "undisturbed.csv").read_bytes()
