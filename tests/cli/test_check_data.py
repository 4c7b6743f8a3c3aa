from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tables import read_csv as rows

from ffn.cli import main
from ffn.data import read_annotations
from ffn.datasets.synthetic import generate


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = generate(tmp_path / "videos", train_per_class=1, val_per_class=1, size=32, frames=8)
    rows = list(csv.reader((folder / "val.csv").open()))
    (folder / rows[2][0]).write_bytes(b"no video")
    (folder / rows[3][0]).unlink()
    rows[4][2] = "9"
    with (folder / "val.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def test_report_exclusions_and_corrected_index(videos: Path, capsys: pytest.CaptureFixture) -> None:
    before = (videos / "val.csv").read_bytes()
    listed = rows(videos / "val.csv")
    assert main(["check_data", str(videos / "val.csv"), "--workers", "2"]) == 1
    assert (videos / "val.csv").read_bytes() == before

    report = videos / "val.check"
    statuses = [row["status"] for row in rows(report / "report.csv")]
    assert statuses == ["ok", "bad", "bad", "count"] + 8 * ["ok"]
    excluded = (report / "exclude.txt").read_text().splitlines()
    assert excluded == [listed[1]["path"], listed[2]["path"]]
    index = rows(report / "index.csv")
    assert [row["path"] for row in index] == [
        r["path"] for r in listed if r["path"] not in excluded
    ]
    assert {row["frames"] for row in index} == {"8"}

    shown = capsys.readouterr().out
    assert "12 videos, 80 frames" in shown
    assert "no such file" in shown
    records, _ = read_annotations(report / "index.csv", root=videos, classes=videos / "classes.txt")
    assert len(records) == 10


def test_the_corrected_index_keeps_all_columns(videos: Path) -> None:
    listed = rows(videos / "train.csv")
    header = "scene\tpath\tLabel\tframes\tstart\tend\tgroup"
    lines = [
        f"s{n % 2}, left\t{r['path']}\t{r['label']}\t9\t0\t0.2\tg{n}" for n, r in enumerate(listed)
    ]
    table = videos / "scenes.tsv"
    table.write_text("\n".join([header, *lines]))
    main(["check_data", str(table), "--workers", "1", "--frames", "2"])
    index = rows(videos / "scenes.check" / "index.csv")
    assert list(index[0]) == ["path", "label", "frames", "start", "end", "scene", "group"]
    assert [row["scene"] for row in index] == [f"s{n % 2}, left" for n in range(len(listed))]
    assert [row["group"] for row in index] == [f"g{n}" for n in range(len(listed))]
    assert [row["path"] for row in index] == [row["path"] for row in listed]


def test_nothing_is_overwritten_unasked(videos: Path) -> None:
    table = videos / "index.csv"
    table.write_bytes((videos / "train.csv").read_bytes())
    before = table.read_bytes()
    command = ["check_data", str(table), "--frames", "3", "--workers", "1"]
    assert main(command) == 0
    assert main(command) == 2
    assert main([*command, "--overwrite"]) == 0
    assert main([*command, "--output", str(videos), "--overwrite"]) == 2  # of the list that is read
    assert table.read_bytes() == before


def test_the_corrected_index_keeps_the_paths_of_the_list(videos: Path, tmp_path: Path) -> None:
    """`..` is that of the folder which a link names."""
    (tmp_path / "far/set").mkdir(parents=True)
    (tmp_path / "root").symlink_to(tmp_path / "far/set")
    root, first = tmp_path / "root", videos / rows(videos / "train.csv")[0]["path"]
    (tmp_path / "far/b.mp4").write_bytes(first.read_bytes())
    listed = ["../b.mp4", str(first)]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{p},run\n" for p in listed))
    command = ["check_data", str(tmp_path / "list.csv"), "--root", str(root), "--workers", "1"]
    assert main(command) == 0
    assert [row["path"] for row in rows(tmp_path / "list.check/index.csv")] == listed


def test_the_report_of_a_folder_is_beside_it(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside, it would be a class of the next command."""
    for row in rows(videos / "train.csv")[:2]:
        folder = tmp_path / "data" / row["label"]
        folder.mkdir(parents=True)
        (videos / row["path"]).rename(folder / "a.mp4")
    monkeypatch.chdir(tmp_path / "data")
    before = sorted((tmp_path / "data").rglob("*"))
    for place in (".", "../data/"):
        assert main(["check_data", place, "--workers", "1", "--overwrite"]) == 0
        assert (tmp_path / "data.check/report.csv").is_file()
        assert sorted((tmp_path / "data").rglob("*")) == before
