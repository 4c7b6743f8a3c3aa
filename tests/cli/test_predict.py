"""The predict command: formats, windows, pictures, and lists of videos."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image
from tables import read_csv

import ffn
from ffn.cli import main
from ffn.serve import Predictor, merge_windows
from ffn.zoo import save_weights


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))


def predict(capsys, weights, *words: object) -> tuple[int, str, str]:
    status = main(["predict", *map(str, words), "--weights", str(weights), "--precision", "fp32"])
    return status, *capsys.readouterr()


def test_json_lines(capsys, weights, videos) -> None:
    files = [videos[0], "missing.mp4", videos[1]]
    status, out, err = predict(capsys, weights, *files, "--format", "json", "--frames", 4)

    assert status == 1
    first, missing, second = map(json.loads, out.splitlines())
    assert missing == {"path": "missing.mp4", "error": "no such file or folder"}
    assert "ffn predict: missing.mp4: no such file or folder\n" in err
    predictor = Predictor(weights, precision="fp32")
    for found, path in ((first, videos[0]), (second, videos[1])):
        expected = predictor(path, frames=4)
        assert [(one["label"], one["probability"]) for one in found["labels"]] == expected.top()
        assert (found["path"], found["frames"], found["sub_network"]) == (path, 4, 4)
        assert found["network"] == "torch, fp32"
        assert found["decode_ms"] > 0


def test_no_output_has_the_password_of_an_address(capsys, weights, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ffn.data.store.remote.WAITS", (0,))
    address = "http://me:s3cr@t@127.0.0.1:1/v.mp4?token=s3cr"
    Path("list.txt").write_text(f"{address}\n")
    written = predict(capsys, weights, "list.txt", "--output", "out.csv", "--workers", 0)[1:]
    written += (Path("out.csv").read_text(),)
    for words in ([address], [address, "--format", "json", "--save", "{name}.png"]):
        written += predict(capsys, weights, *words)[1:]
    assert "".join(written).count("127.0.0.1:1/v.mp4?token=***") == 4
    assert "s3cr" not in "".join(written)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_folder_of_frames(count, capsys, weights, tmp_path) -> None:
    for number in range(count):
        Image.new("RGB", (32, 32)).save(tmp_path / f"img_{number}.jpg")
    words = (tmp_path, "--pattern", "img_{:d}.jpg", "--frames", 8)
    status, out, _ = predict(capsys, weights, *words)
    assert (status, out.partition(":")[0]) == (0, str(tmp_path))
    assert (f"only {count} of them different" in out) == (count < 8)
    found = json.loads(predict(capsys, weights, *words, "--format", "json")[1])
    assert found["distinct_frames"] == count


def test_limits_of_reading(capsys, weights, tmp_path, monkeypatch) -> None:
    for number in range(8):
        Image.new("RGB", (5000, 5000)).save(tmp_path / f"{number:05d}.jpg")
    late = predict(capsys, weights, tmp_path, "--timeout", 0.01)
    monkeypatch.setenv("FFN_MAX_READER_BYTES", "100000000")
    large = predict(capsys, weights, tmp_path)
    assert late[:2] == large[:2] == (1, "")
    assert "took more than 0.01 s" in late[2]
    assert "FFN_MAX_READER_BYTES" in large[2]


@pytest.mark.slow
def test_windows(capsys, weights, videos) -> None:
    words = (videos[0], "--window", 2, "--step", 0.5, "--frames", 4)
    expected = list(Predictor(weights, precision="fp32").windows(videos[0], 2, step=0.5, frames=4))
    segments = merge_windows(expected)

    _, out, _ = predict(capsys, weights, *words)
    first, *lines = out.splitlines()
    assert first.startswith(f"{videos[0]}: 5 windows of 2 s, 4 frames, sub-network 4, torch, fp32")
    assert len(lines) == len(segments)
    for line, segment in zip(lines, segments, strict=True):
        times = rf"\s+{segment.start:.2f} - +{segment.end:.2f} s +"
        assert re.fullmatch(rf"{times}{segment.probability:.2%}  {segment.label}", line)

    _, out, _ = predict(capsys, weights, *words, "--format", "json")
    found = json.loads(out)
    assert found["segments"] == [asdict(segment) for segment in segments]
    assert [w["start"] for w in found["windows"]] == [0, 0.5, 1, 1.5, 2]


@pytest.mark.slow
def test_pictures(capsys, weights, videos, tmp_path) -> None:
    for kind in ("png", "gif", "mp4"):
        save = ("--save", tmp_path / f"out/{{name}}.{kind}")
        assert predict(capsys, weights, *videos, *save)[::2] == (0, "")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {f"{name}.{kind}" for name in "ab" for kind in ("png", "gif", "mp4")}
    with Image.open(tmp_path / "out/a.gif") as image:
        assert image.n_frames == 8

    before = (tmp_path / "out/a.png").read_bytes()
    assert predict(capsys, weights, videos[0], "--save", tmp_path / "out/a.png")[:2] == (2, "")
    assert (tmp_path / "out/a.png").read_bytes() == before
    save = ("--save", tmp_path / "out/a.mp4", "--overwrite")
    assert predict(capsys, weights, videos[0], "--window", 1, *save)[0] == 0


def test_heat_maps(capsys, weights, videos, tmp_path) -> None:
    pictures = set()
    for number, more in enumerate(([], ["--label", "down"], ["--layer", "net.layer2"])):
        save = ("--save", tmp_path / f"{number}.png", "--heat-map", *more)
        assert predict(capsys, weights, videos[0], "--frames", 4, *save)[::2] == (0, "")
        pictures.add((tmp_path / f"{number}.png").read_bytes())
    assert len(pictures) == 3


def test_a_folder_of_videos(capsys, weights, videos, tmp_path) -> None:
    for path in videos:
        (tmp_path / Path(path).name).symlink_to(path)
    (tmp_path / "broken.mp4").write_text("no video")
    (tmp_path / "notes.txt").write_text("not listed")
    status, out, _ = predict(capsys, weights, tmp_path, "--format", "json")
    rows = {Path(row["path"]).name: row for row in map(json.loads, out.splitlines())}
    assert (status, list(rows)) == (1, ["a.mp4", "b.mp4", "broken.mp4"])
    assert [name for name, row in rows.items() if "error" in row] == ["broken.mp4"]


def test_options_without_effect_and_wrong_values(
    capsys, weights, videos, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text(videos[0])
    for words, value in (
        ("", "FILE"),
        ("A --heat-map", "--save"),
        ("A --heat-map --window 1 --save out.mp4", "--window"),
        ("A --heat-map --label u --save out.png", "'u'"),
        ("A --save out.jpg", "out.jpg"),
        ("A --window 2 --save out.png", ".mp4"),
        ("A B --save out.png", "{name}"),
        ("A --window 0", "--window"),
        ("A --step 1", "--window"),
        ("A --fps 5", "--window"),
        ("A --label up", "--heat-map"),
        ("A --workers 2", "--output"),
        ("A --save A --overwrite", "a.mp4"),
        ("A B --output o.csv", "2 files"),
        ("A --output o.csv --window 1", "windows"),
        ("list.csv --output o.csv", "list.csv"),
        ("LIST --output o.xls", "o.xls"),
        ("LIST --output o.csv --format json", "json"),
        ("LIST", "--output"),
        ("A --frames 0", "frames"),
    ):
        words = words.replace("LIST", "list.txt").replace("A", videos[0]).replace("B", videos[1])
        status, out, err = predict(capsys, weights, *words.split())
        assert (status, out) == (2, ""), words
        assert value in err, (words, err)
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(("o.", "out"))]


def test_weights_with_nan(capsys, weights, videos, tmp_path) -> None:
    model = ffn.load(weights)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = torch.nan
    save_weights(model, tmp_path / "nan.safetensors", model.record.to_dict())
    status, out, err = predict(capsys, tmp_path / "nan.safetensors", videos[0])
    assert (status, out) == (2, "")
    assert "NaN or infinite" in err


def test_a_list(capsys, weights, videos, tmp_path) -> None:
    (tmp_path / "list.csv").write_text("path\na.mp4\nmissing.mp4\nb.mp4\n")
    root = videos[0].removesuffix("/a.mp4")
    words = (tmp_path / "list.csv", "--root", root, "--frames", 4, "--workers", 0)

    status, out, err = predict(capsys, weights, *words, "--output", tmp_path / "o.csv")

    assert (status, err) == (0, "")
    assert out == f"{tmp_path}/o.csv: 3 videos; 1 could not be read, see its column error\n"
    rows = read_csv(tmp_path / "o.csv")
    expected = Predictor(weights, precision="fp32")(videos[1], frames=4)
    assert rows[2]["label"] == expected.top(1)[0][0]
    assert rows[1]["error"] == "no such file or folder"

    status, _, err = predict(capsys, weights, videos[1], "--output", tmp_path / "one.csv")
    assert status == 2
    assert "b.mp4 is a video; with --output, the file is a list of videos" in err

    status, _, err = predict(capsys, weights, *words, "--output", tmp_path / "o.csv")
    assert status == 2
    assert "o.csv exists" in err
