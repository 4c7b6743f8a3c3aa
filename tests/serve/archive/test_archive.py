"""Lists of videos: their table, several processes, interruptions, and videos that end a worker."""

from __future__ import annotations

import csv
import json
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
import torch
from serve_files import save_network, write_video

from ffn.serve import Predictor
from ffn.serve.archive import loader as archive_loader
from ffn.serve.archive.parts import Parts
from ffn.serve.archive.predict import ArchiveOptions, ArchiveResult, Listed, predict_archive

ROOT = Path(__file__).parents[3]
OPTIONS = ArchiveOptions(frames=4, labels=2, batch_size=3)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return save_network(tmp_path_factory.mktemp("weights") / "tiny.safetensors", spread=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Ten videos of different lengths and sizes, two broken ones, and their list."""
    folder = tmp_path_factory.mktemp("archive")
    random = np.random.default_rng(2)
    for number in range(10):
        shape = (3 + 2 * number, 40, 48 + 2 * (number % 2), 3)
        film = random.integers(0, 256, shape, dtype=np.uint8)
        write_video(folder / f"v{number}.mp4", film, rate=10)
    (folder / "empty.mp4").touch()
    names = [f"v{number}.mp4" for number in range(10)]
    names[2:2] = ["empty.mp4"]
    names[7:7] = ["missing.mp4"]
    (folder / "list.txt").write_text("\n".join(names) + "\n")
    return folder


def run(
    folder, output, weights, options=OPTIONS, name="list.txt", precision="fp32", **more
) -> ArchiveResult:
    def build(settled):
        return Predictor(weights, precision=settled or precision)

    return predict_archive(build, Listed.read(folder / name), output, options, **more)


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_paths_of_a_list(tmp_path) -> None:
    """Addresses are not paths below the folder of the list."""
    (tmp_path / "list.txt").write_text("https://host/a.mp4\ns3://bucket/b.mp4\nc/d.mp4\n")
    listed = Listed.read(tmp_path / "list.txt")
    paths = [record.path for record in listed.records]
    assert paths == ["https://host/a.mp4", "s3://bucket/b.mp4", str(tmp_path / "c/d.mp4")]
    assert listed.names == ["https://host/a.mp4", "s3://bucket/b.mp4", "c/d.mp4"]


def test_rows_are_those_of_the_predictor(weights, folder, tmp_path) -> None:
    output = tmp_path / "out.csv"

    result = run(folder, output, weights)

    assert result == ArchiveResult(videos=12, kept=0, errors=2)
    rows = rows_of(output)
    names = (folder / "list.txt").read_text().split()
    assert [row["path"] for row in rows] == names
    predictor = Predictor(weights, precision="fp32")
    for row in rows:
        if row["path"] in ("empty.mp4", "missing.mp4"):
            cause = {"empty.mp4": "the file is empty (0 bytes)"}
            assert row["error"] == cause.get(row["path"], "no such file or folder")
            assert {v for k, v in row.items() if k not in ("path", "error")} == {""}
            continue
        expected = predictor(folder / row["path"], frames=4)
        (label, first), (second, other) = expected.top(2)
        assert (row["label"], row["label_2"]) == (label, second)
        assert float(row["probability"]) == pytest.approx(first, abs=1e-5)
        assert float(row["probability_2"]) == pytest.approx(other, abs=1e-5)
        assert (row["frames"], row["sub_network"], row["error"]) == ("4", "4", "")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_numbers_depend_on_neither_workers_nor_interruptions(weights, folder, tmp_path) -> None:
    run(folder, tmp_path / "a.csv", weights)
    expected = (tmp_path / "a.csv").read_bytes()

    run(folder, tmp_path / "b.csv", weights, replace(OPTIONS, workers=2))
    assert (tmp_path / "b.csv").read_bytes() == expected

    class Stop(Exception):
        pass

    def stop_after_6(done, total):
        if done == 6:
            raise Stop

    with pytest.raises(Stop):
        run(folder, tmp_path / "c.csv", weights, progress=stop_after_6)
    assert not (tmp_path / "c.csv").exists()
    (part,) = (tmp_path / "c.csv.parts").glob("rows-*")
    assert len(part.read_text().splitlines()) == 2
    part.write_text(part.read_text()[:-20])  # the last line is cut, as by a power failure
    seen = []
    result = run(folder, tmp_path / "c.csv", weights, progress=lambda *x: seen.append(x))
    assert result == ArchiveResult(videos=12, kept=3, errors=2)
    assert seen[-1] == (9, 9)
    assert (tmp_path / "c.csv").read_bytes() == expected


def test_the_number_of_frames_may_differ(weights, folder, tmp_path) -> None:
    run(folder, tmp_path / "out.csv", weights, replace(OPTIONS, frames="auto"))
    found = {row["path"]: row["frames"] for row in rows_of(tmp_path / "out.csv")}
    assert found["v0.mp4"] == "3"
    assert found["v9.mp4"] == "12"
    assert found["v4.mp4"] == "9"  # 11 frames, 10 per second: 8 x 1.1 s = 8.8


def test_columns_of_the_list(weights, folder, tmp_path) -> None:
    """Parts of videos; other columns do not matter."""
    text = "label,path,start,end\nx,v9.mp4,0.5,1.2\n,v9.mp4,,\nx,v9.mp4,7,8\n"
    (folder / "parts.csv").write_text(text)
    run(folder, tmp_path / "out.csv", weights, name="parts.csv")
    part, whole, beyond = rows_of(tmp_path / "out.csv")
    assert (part["start"], part["end"], whole["start"]) == ("0.5", "1.2", "")
    assert part["probability"] != whole["probability"]
    assert beyond["error"].startswith("has no frame between 7.0 and 8.0 s")

    (folder / "wrong.csv").write_text("label,video_name\nx,v1.mp4\n")
    with pytest.raises(ValueError, match=r"wrong\.csv:1: no column for the path"):
        Listed.read(folder / "wrong.csv")
    (folder / "none.txt").write_text("\n")
    with pytest.raises(ValueError, match="contains no video"):
        Listed.read(folder / "none.txt")
    with pytest.raises(FileNotFoundError, match=r"list .*other\.csv does not exist"):
        Listed.read(folder / "other.csv")


def test_parquet_has_the_rows_of_csv_and_features(weights, folder, tmp_path) -> None:
    run(folder, tmp_path / "out.csv", weights)
    run(folder, tmp_path / "out.parquet", weights, replace(OPTIONS, features=True, workers=1))
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    predictor = Predictor(weights, precision="fp32")
    linear = next(
        module
        for module in predictor.model.modules()
        if isinstance(module, torch.nn.Linear) and module.out_features == 3
    )
    for row, expected in zip(table, rows_of(tmp_path / "out.csv"), strict=True):
        features = row.pop("features")
        if expected["error"]:
            assert (row["error"], features, row["frames"]) == (expected["error"], None, None)
            continue
        assert row["label"] == expected["label"]
        assert row["probability"] == pytest.approx(float(expected["probability"]))
        logits = linear(torch.tensor(features))
        found = predictor(folder / row["path"], frames=4).probabilities
        torch.testing.assert_close(logits.softmax(-1), found, atol=1e-5, rtol=0)


def test_another_call_that_does_not_fit_is_refused(weights, folder, tmp_path) -> None:
    output = tmp_path / "out.csv"

    class Stop(Exception):
        pass

    def stop(done, total):
        if done:
            raise Stop

    with pytest.raises(Stop):
        run(folder, output, weights, progress=stop)
    with pytest.raises(ValueError, match=r"out\.csv\.parts was begun with frames 4, now it is 8"):
        run(folder, output, weights, replace(OPTIONS, frames=8))
    other = save_network(tmp_path / "other.safetensors", spread=0.2)
    with pytest.raises(ValueError, match="was begun with other weights; repeat"):
        run(folder, output, other)
    (tmp_path / "list.txt").write_text((folder / "list.txt").read_text().replace("v3", "v4"))
    with pytest.raises(ValueError, match="was begun with another list of videos; repeat"):
        run(tmp_path, output, weights)
    (tmp_path / "list.txt").write_text((folder / "list.txt").read_text())
    with pytest.raises(ValueError, match=f"was begun with root '{folder}', now it is '{tmp_path}'"):
        run(tmp_path, output, weights)
    with pytest.raises(ValueError, match="with network 'fused, fp32', now it is 'fused, bf16'"):
        run(folder, output, weights, precision="bf16")
    parts = Parts(tmp_path / "out.csv.parts", [range(3)])
    with parts.lock(), pytest.raises(FileExistsError, match="in use by another process"):
        run(folder, output, weights)
    (parts.folder / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json is damaged"):
        run(folder, output, weights)
    for name, options in (("out.txt", OPTIONS), ("o.csv", replace(OPTIONS, features=True))):
        with pytest.raises(ValueError, match=r"the table is .*\*\.parquet"):
            run(folder, tmp_path / name, weights, options)


def test_lines_that_are_no_chunk_do_not_count(tmp_path) -> None:
    parts = Parts(tmp_path / "parts", [range(2), range(2, 4), range(4, 5)])
    with parts.lock(), parts.append() as add:
        add(1, {"rows": [[1], [2]]})
        add(2, {"rows": [[3], [4]]})  # two rows, of a chunk with one
        add(9, {"rows": [[5]]})
    garbage = ["[]", "{", json.dumps({"chunk": 0}), json.dumps({"chunk": "x", "rows": [1, 2]}), ""]
    (parts.folder / "rows-x.jsonl").write_text("\n".join(garbage))
    assert list(parts.places()) == [1]


def test_a_file_of_another_in_the_folder_of_the_parts_stays(weights, folder, tmp_path) -> None:
    """NFS leaves one of each file that is open."""
    (tmp_path / "out.csv.parts").mkdir()
    (tmp_path / "out.csv.parts/.nfs01").touch()
    assert run(folder, tmp_path / "out.csv", weights).videos == 12
    assert len(rows_of(tmp_path / "out.csv")) == 12
    assert [path.name for path in (tmp_path / "out.csv.parts").iterdir()] == [".nfs01"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "cause"), [("ends", "exited unexpectedly"), ("hangs", "timed out")]
)
def test_a_video_that_ends_or_blocks_its_worker_is_a_row(
    weights, folder, tmp_path, monkeypatch, does, cause
) -> None:
    run(folder, tmp_path / "a.csv", weights)
    read = archive_loader._read

    def read_or_end(job):
        if job[1].path.endswith("v4.mp4"):
            if does == "ends":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return read(job)

    monkeypatch.setattr(archive_loader, "_read", read_or_end)
    options = replace(OPTIONS, workers=2, timeout=600 if does == "ends" else 2)

    started = time.monotonic()
    result = run(folder, tmp_path / "b.csv", weights, options)

    assert time.monotonic() - started < 60  # an ended worker is noticed at once

    assert result.errors == 3
    for row, expected in zip(rows_of(tmp_path / "b.csv"), rows_of(tmp_path / "a.csv"), strict=True):
        if row["path"] == "v4.mp4":
            assert cause in row["error"]
            continue
        for key in ("path", "label", "error"):
            assert row[key] == expected[key]
        if row["label"]:
            assert float(row["probability"]) == pytest.approx(
                float(expected["probability"]), abs=1e-5
            )


@pytest.mark.slow
def test_videos_are_read_while_the_network_runs(weights, folder, tmp_path, monkeypatch) -> None:
    """The network waits for the last video of the second batch."""
    read, predict = archive_loader._read, Predictor.predict
    marker = tmp_path / "read"

    def read_and_tell(job):
        found = read(job)
        if job[1].path.endswith("v3.mp4"):  # the list starts v0, v1, empty | v2, v3, v4
            marker.touch()
        return found

    def wait_and_predict(self, clips):
        deadline = time.monotonic() + 60
        while not marker.exists():
            assert time.monotonic() < deadline, "no video is read while the network runs"
            time.sleep(0.01)
        return predict(self, clips)

    monkeypatch.setattr(archive_loader, "_read", read_and_tell)
    monkeypatch.setattr(Predictor, "predict", wait_and_predict)

    assert run(folder, tmp_path / "a.csv", weights, replace(OPTIONS, workers=1)).errors == 2


def command(folder, output, weights, *, processes=1) -> list[str]:
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    words = [str(folder / "list.txt"), "--weights", str(weights), "--output", str(output)]
    options = ["--frames", "4", "--top", "2", "--batch-size", "3", "--workers", "1"]
    return [*start, str(ROOT / "tools/predict.py"), *words, *options, "--precision", "fp32"]


@pytest.mark.slow
def test_two_processes_write_the_rows_of_one(weights, folder, tmp_path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for processes in (1, 2):
        words = command(folder, tmp_path / f"{processes}.csv", weights, processes=processes)
        found = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
        assert "12 videos; 2 could not be read, see" in found.stdout
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


@pytest.mark.slow
def test_a_run_that_is_killed_ten_times_ends_with_the_same_rows(weights, folder, tmp_path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    names = (folder / "list.txt").read_text().split() * 60
    (folder / "many.txt").write_text("\n".join(names) + "\n")
    words = command(folder, tmp_path / "out.csv", weights)
    words[2] = str(folder / "many.txt")
    parts, before = tmp_path / "out.csv.parts", 0
    for _ in range(10):
        process = subprocess.Popen(words, env=env, start_new_session=True)
        while sum(p.stat().st_size for p in parts.glob("rows-*")) <= before:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before = sum(p.stat().st_size for p in parts.glob("rows-*"))
    assert not (tmp_path / "out.csv").exists()
    found = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert "of them by an earlier call" in found.stdout
    words[words.index(str(tmp_path / "out.csv"))] = str(tmp_path / "undisturbed.csv")
    subprocess.run(words, env=env, check=True)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "undisturbed.csv").read_bytes()


def test_features_in_bf16(weights, folder, tmp_path) -> None:
    """Packed layers have features too."""
    options = replace(OPTIONS, features=True)

    def build(precision):
        return Predictor(weights, precision=precision or "bf16")

    predict_archive(build, Listed.read(folder / "list.txt"), tmp_path / "bf16.parquet", options)
    run(folder, tmp_path / "fp32.parquet", weights, options)
    found, expected = (
        parquet.read_table(tmp_path / f"{name}.parquet")["features"].to_pylist()
        for name in ("bf16", "fp32")
    )
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
            continue
        other = torch.tensor(other)
        assert (torch.tensor(one) - other).abs().max() < 0.05 * other.abs().max()


class FailsAtSomeVideos:
    """A network whose logits of some clips are NaN, as those of fp16 that overflow."""

    def __init__(self, networks, failing) -> None:
        self._networks, self._failing = networks, failing

    def __call__(self, batch):
        logits = self._networks(batch)
        bad = torch.stack([(clip == each).all() for clip in batch for each in self._failing])
        logits[bad.reshape(len(batch), -1).any(1)] = torch.nan
        return logits

    def __getattr__(self, name):
        return getattr(self._networks, name)

    def __str__(self) -> str:
        return str(self._networks)


@pytest.mark.parametrize("features", [False, True])
def test_logits_that_are_not_finite_are_a_row_with_the_cause(
    weights, folder, tmp_path, features
) -> None:
    def build(settled):
        predictor = Predictor(weights, precision="fp32")
        clips = [predictor.reader(4).read(folder / f"v{n}.mp4").pixels for n in (1, 6)]
        failing = predictor._normalize(torch.stack(clips))
        predictor._networks = FailsAtSomeVideos(predictor._networks, failing)
        return predictor

    options = replace(OPTIONS, features=features)
    videos = Listed.read(folder / "list.txt")
    result = predict_archive(build, videos, tmp_path / "nan.parquet", options)
    expected = run(folder, tmp_path / "all.parquet", weights, options)

    assert (result.errors, expected.errors) == (4, 2)
    tables = (parquet.read_table(tmp_path / f"{name}.parquet") for name in ("nan", "all"))
    for row, other in zip(*(table.to_pylist() for table in tables), strict=True):
        if row["path"] in ("v1.mp4", "v6.mp4"):
            assert "the logits at 4 frames are NaN or infinite (fused, fp32" in row["error"]
            assert {v for k, v in row.items() if k not in ("path", "error")} == {None}
        else:
            for key, value in other.items():
                assert row[key] == (pytest.approx(value, abs=1e-5) if value else value)
