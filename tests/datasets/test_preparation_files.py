"""Reading files in parallel, resuming from the journal, and existing indexes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import pytest
from PIL import Image
from preparation_layouts import Layouts, index, write_videos

from ffn.data.workers import map_in_processes
from ffn.datasets import (
    DATASETS,
    Entry,
    Inventory,
    Listing,
    PreparationError,
    prepare,
    read_rows,
)
from ffn.datasets.facts import Journal, VideoFacts

ROOT = Path(__file__).parents[2]


def count_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that are opened."""
    from ffn.datasets import facts

    opened, read = [], facts.read_facts
    monkeypatch.setattr(facts, "read_facts", lambda path, *a: opened.append(path) or read(path, *a))
    return opened


def test_facts_of_a_file(layouts: Layouts) -> None:
    write_videos(layouts, 1, rotation=90)

    prepare("folder", layouts.root)

    assert index(layouts.root) == [
        {
            "path": "train/run/0.mp4",
            "label": "run",
            "frames": "5",
            "fps": "25",
            "duration": "0.2",
            "width": "24",
            "height": "32",
        }
    ]


def test_unreadable_files_are_named_with_the_cause(layouts: Layouts) -> None:
    write_videos(layouts, 2)
    (layouts.root / "train/run/empty.mp4").touch()
    layouts.text("train/run/page.mp4", ["<html>not found</html>"])

    summary = prepare("folder", layouts.root)

    causes = {one.name: one.detail for one in summary.problems if one.kind == "unreadable"}
    assert "0 bytes" in causes["train/run/empty.mp4"]
    assert "not a video" in causes["train/run/page.mp4"]
    assert [row["path"] for row in index(layouts.root)] == ["train/run/0.mp4", "train/run/1.mp4"]


def test_verify_finds_damage_that_the_packets_hide(layouts: Layouts) -> None:
    for name in ("whole", "broken"):
        layouts.video(f"train/run/{name}.mp4", 40, stream={"g": "40", "bf": "0", "qp": "5"})
    layouts.video("val/run/a.mp4")
    path = layouts.root / "train/run/broken.mp4"
    data = bytearray(path.read_bytes())
    begin = data.find(b"mdat") + 4
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        middle = packets[20].pos
    assert begin < middle
    data[middle + 4 : middle + 4 + packets[20].size - 8] = os.urandom(packets[20].size - 8)
    path.write_bytes(data)

    trusted = prepare("folder", layouts.root)
    verified = prepare("folder", layouts.root, verify=True, overwrite=True)

    assert [p.kind for p in trusted.problems] == []
    assert [(p.kind, p.name) for p in verified.problems] == [("unreadable", "train/run/broken.mp4")]
    assert verified.description["verified"]


def test_an_index_is_not_overwritten_by_default(layouts: Layouts) -> None:
    write_videos(layouts)
    prepare("folder", layouts.root)
    before = (layouts.root / "index/train.csv").read_text()

    with pytest.raises(FileExistsError, match="holds an index already"):
        prepare("folder", layouts.root)
    layouts.video("train/run/new.mp4")
    prepare("folder", layouts.root, overwrite=True)

    assert len(index(layouts.root)) == len(before.splitlines())  # with the header, one less


def test_a_users_own_list_is_not_overwritten(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    layouts.text("index/train.csv", ["path,label", "a.mp4,run"])

    with pytest.raises(FileExistsError, match=r"train\.csv"):
        prepare("folder", layouts.root)

    assert (layouts.root / "index/train.csv").read_text() == "path,label\na.mp4,run\n"
    assert sorted(p.name for p in (layouts.root / "index").iterdir()) == ["train.csv"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("problems.csv", "mine,1\n"),
        ("journal.jsonl", '{"day": 1}\n[2]\n'),
        ("journal.jsonl", '{"path": "a.mp4", "label": 1}\n'),
        ("journal.jsonl", "a diary"),
    ],
)
def test_files_of_the_names_of_an_index_are_not_changed(
    layouts: Layouts, name: str, text: str
) -> None:
    write_videos(layouts, 1)
    output = layouts.root.parent / "mine"
    output.mkdir()
    (output / name).write_text(text)

    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=rf"holds other files \({name}\) with the names"):
            prepare("folder", layouts.root, output=output, overwrite=overwrite)

        assert {p.name: p.read_text() for p in output.iterdir()} == {name: text}


def test_another_journal_beside_an_index_is_replaced(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    prepare("folder", layouts.root)
    journal = layouts.root / "index/journal.jsonl"
    journal.write_text("a diary")

    with pytest.raises(FileExistsError, match=r"holds an index already .*journal"):
        prepare("folder", layouts.root)
    prepare("folder", layouts.root, overwrite=True)

    assert len(journal.read_text().splitlines()) == 2


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_lists_of_a_data_set_are_never_replaced(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """The data set of docs/data.md, with its index in the folder of the lists."""
    layouts.video("a.mp4")
    for split in ("train", "val"):
        layouts.text(f"{split}.csv", ["a.mp4,run"])
    if interrupted:
        (layouts.root / "journal.jsonl").touch()

    def mine(videos: Inventory, lists: Inventory) -> Listing:
        listing = Listing(["run"], ["train", "val"])
        for split in listing.splits:
            for where, (path, label) in read_rows(lists.root / f"{split}.csv", ","):
                listing.entries.append(Entry(split, path, label, where, path))
        return listing

    monkeypatch.setitem(DATASETS._entries, "mine", mine)
    for options in ({}, {"annotations": layouts.root}):
        with pytest.raises(FileExistsError, match=r"holds other files \(train\.csv, val\.csv\)"):
            prepare("mine", layouts.root, output=layouts.root, overwrite=True, **options)
    assert (layouts.root / "train.csv").read_text() == "a.mp4,run\n"


def test_an_index_in_the_folder_of_the_data_set(layouts: Layouts) -> None:
    """Its lists are no lists of the data set."""
    columns = "label,youtube_id,time_start,time_end,split"
    for split in ("train", "val"):
        rows = [("run", f"abcdefghij{split[0]}", 1, 2, split)]
        layouts.kinetics_csv(f"kinetics_{split}.csv", rows, columns)
        layouts.long_video(f"{split}/abcdefghij{split[0]}_000001_000002.mp4", 5)

    for overwrite in (False, True):
        summary = prepare("k700", layouts.root, output=layouts.root, overwrite=overwrite)

        assert summary.problems == []
        assert "train/abcdefghijt_000001_000002.mp4" in (layouts.root / "train.csv").read_text()


def test_a_folder_of_the_data_set_for_the_index(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    before = sorted(layouts.root.rglob("*"))

    with pytest.raises(PreparationError, match=r"the index, .*train, holds videos \(run/0\.mp4\)"):
        prepare("folder", layouts.root, output=layouts.root / "train")
    assert sorted(layouts.root.rglob("*")) == before

    layouts.text("lists/train.csv", ["label,youtube_id,time_start,time_end,split"])
    with pytest.raises(PreparationError, match=r"no official list .*Lists in .*lists are not read"):
        prepare("k400", layouts.root, output=layouts.root / "lists")


@pytest.mark.parametrize("left", [0, 5, 40, None])
def test_a_journal_cut_off_anywhere_is_resumed(layouts: Layouts, left: int | None) -> None:
    write_videos(layouts, 1)
    prepare("folder", layouts.root)
    (layouts.root / "index/dataset.json").unlink()
    journal = layouts.root / "index/journal.jsonl"
    whole = journal.read_text()
    journal.write_text(whole[:left])

    prepare("folder", layouts.root)

    assert journal.read_text() == whole


def test_a_smaller_data_set_leaves_no_old_list(layouts: Layouts) -> None:
    write_videos(layouts)
    layouts.video("test/run/a.mp4")
    prepare("folder", layouts.root)
    assert (layouts.root / "index/test.csv").exists()

    (layouts.root / "test/run/a.mp4").unlink()
    prepare("folder", layouts.root, overwrite=True)

    assert not (layouts.root / "index/test.csv").exists()


def test_figures_of_tools_are_no_frames(layouts: Layouts) -> None:
    write_videos(layouts)
    prepare("folder", layouts.root)
    classes = (layouts.root / "index/classes.txt").read_text()
    layouts.text("runs/find_lr/lr_range.png", [])
    layouts.text("runs/test/results.png", [])
    layouts.text("runs/a/log.jsonl", [])
    layouts.text("runs/a/network.confusion.png", [])

    prepare("folder", layouts.root, overwrite=True)

    assert (layouts.root / "index/classes.txt").read_text() == classes


def test_resumes_from_the_journal(layouts: Layouts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at the third file, it resumes with the third; an incomplete line is ignored."""
    write_videos(layouts)
    seen = []

    def stop(what: str, done: int, count: int) -> None:
        seen.append((what, done, count))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("folder", layouts.root, progress=stop)
    assert seen == [("reading", done, 6) for done in range(4)]
    assert not (layouts.root / "index/train.csv").exists()
    with (layouts.root / "index/journal.jsonl").open("a") as file:
        file.write('{"path": "train/run/2.mp4", "key": [1, 2')

    opened = count_opened(monkeypatch)
    prepare("folder", layouts.root)

    assert len(opened) == 3
    assert [row["frames"] for row in index(layouts.root)] == ["5", "6", "7"]
    lines = (layouts.root / "index/journal.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["path"] for line in lines) == sorted(
        f"{split}/run/{n}.mp4" for split in ("train", "val") for n in range(3)
    )


def test_a_changed_file_is_looked_at_again(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_videos(layouts)
    prepare("folder", layouts.root)
    layouts.video("train/run/1.mp4", 9)
    opened = count_opened(monkeypatch)

    prepare("folder", layouts.root, overwrite=True)

    assert [Path(path).name for path in opened] == ["1.mp4"]
    assert [row["frames"] for row in index(layouts.root)] == ["5", "9", "7"]

    opened.clear()
    prepare("folder", layouts.root, overwrite=True, verify=True)
    assert len(opened) == 6  # unverified entries are verified now, and only once
    prepare("folder", layouts.root, overwrite=True)
    assert len(opened) == 6


def test_an_error_is_not_kept_after_its_cause(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_videos(layouts)
    monkeypatch.setenv("FFN_MAX_FRAME_PIXELS", "100")
    with pytest.raises(PreparationError, match="none of the 6 videos can be read"):
        prepare("folder", layouts.root)
    with pytest.raises(PreparationError, match="none of the 6 videos can be read"):
        prepare("folder", layouts.root)
    assert len((layouts.root / "index/journal.jsonl").read_text().splitlines()) == 6
    monkeypatch.delenv("FFN_MAX_FRAME_PIXELS")

    assert prepare("folder", layouts.root).problems == []
    assert len(index(layouts.root)) == 3


def test_damage_that_was_found_with_all_frames_is_not_forgotten(layouts: Layouts) -> None:
    for split in ("train", "val"):
        layouts.frames(f"{split}/run/a")
    frame = layouts.root / "train/run/a/00003.jpg"
    whole = frame.read_bytes()
    frame.write_bytes(b"no image")
    layouts.frames("train/run/b")

    for verify in (True, False):
        summary = prepare("folder", layouts.root, verify=verify, overwrite=True)
        assert [(p.kind, p.name) for p in summary.problems] == [("unreadable", "train/run/a")]
    frame.write_bytes(whole)
    assert prepare("folder", layouts.root, overwrite=True).problems == []


def test_frames_that_are_replaced_in_place(layouts: Layouts) -> None:
    """The modification time of their folder does not change."""
    for split in ("train", "val"):
        layouts.frames(f"{split}/run/a")
    frames = sorted((layouts.root / "train/run/a").iterdir())
    prepare("folder", layouts.root)
    for frame in frames:
        Image.new("RGB", (20, 12)).save(frame)

    assert prepare("folder", layouts.root, overwrite=True).problems == []
    assert [(row["width"], row["height"]) for row in index(layouts.root)] == [("20", "12")]
    assert prepare("folder", layouts.root, verify=True, overwrite=True).problems == []
    frames[1].write_bytes(b"no image")
    summary = prepare("folder", layouts.root, verify=True, overwrite=True)
    assert {(p.kind, p.name) for p in summary.problems} == {
        ("unreadable", "train/run/a"),
        ("class", "run"),
    }


def test_journal_drops_what_is_no_line(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, tmp_path, "{:05d}.jpg")
    journal.add("a.mp4", False, VideoFacts(3, 4, 5, 25.0, 0.12))
    journal.close()
    path.write_bytes(b"[]\nnonsense\n" + path.read_bytes() + b'{"pa')

    again = Journal(path, tmp_path, "{:05d}.jpg")

    assert again.find("a.mp4", verified=False) == VideoFacts(3, 4, 5, 25.0, 0.12)
    assert again.find("a.mp4", verified=True) is None
    again.add("a.mp4", True, "broken")
    again.close()
    assert path.read_bytes().endswith(b"}\n")
    assert Journal(path, tmp_path, "x{}").find("a.mp4", verified=True) == "broken"


def _die_on_three(job: int) -> int:
    if job == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if job == 5:
        time.sleep(60)
    return job * job


def test_a_crash_or_a_hang_of_the_decoder_costs_one_file_alone() -> None:
    outcomes = dict(map_in_processes(_die_on_three, range(8), workers=2, timeout=1))

    assert outcomes.pop(3) == "the worker process exited unexpectedly (SIGKILL, out of memory?)"
    assert outcomes.pop(5) == "timed out after 1 s"
    assert outcomes == {n: n * n for n in (0, 1, 2, 4, 6, 7)}


def test_two_preparations_at_once(layouts: Layouts) -> None:
    from filelock import FileLock

    write_videos(layouts, 1)
    (layouts.root / "index").mkdir()
    with (
        FileLock(layouts.root / "index/.lock"),
        pytest.raises(FileExistsError, match="another preparation"),
    ):
        prepare("folder", layouts.root)


@pytest.mark.slow
def test_killed_and_resumed(layouts: Layouts) -> None:
    """kill -9 while files are read; no process stays, and the same command finishes the index."""
    write_videos(layouts, 1)
    for split in ("train", "val"):
        for number in range(1, 200):
            shutil.copy(
                layouts.root / split / "run/0.mp4", layouts.root / split / f"run/{number}.mp4"
            )
    code = "import sys; from ffn.cli.prepare_data import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "folder", "--root", str(layouts.root), "--workers", "2"]
    journal = layouts.root / "index/journal.jsonl"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 20):
            time.sleep(0.01)
        process.kill()
    known = journal.read_bytes().count(b"\n")
    assert 20 < known < 400
    assert not (layouts.root / "index/dataset.json").exists()

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert len(index(layouts.root)) == 200
    lines = [json.loads(line)["path"] for line in journal.read_text().splitlines()]
    assert len(lines) == len(set(lines)) == 400


def test_the_command_line_lists_all_data_sets() -> None:
    from ffn.cli import prepare_data

    assert set(prepare_data.DATASETS) == set(DATASETS)
