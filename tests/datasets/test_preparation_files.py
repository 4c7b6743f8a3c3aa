"""Reading files in parallel, damaged files, and existing indexes."""

from __future__ import annotations

import os
import signal
import time

import av
import pytest
from preparation_layouts import Layouts, index, write_videos

from ffn.data.workers import map_in_processes
from ffn.datasets import DATASETS, Entry, Inventory, Listing, PreparationError, prepare, read_rows


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
    for path in (layouts.root / "val").rglob("*.mp4"):
        path.unlink()
    prepare("folder", layouts.root, overwrite=True)
    assert not (layouts.root / "index/val.csv").exists()

    files = sorted(layouts.root.rglob("*"))
    with pytest.raises(PreparationError, match=r"the index, .*train, holds videos \(run/0\.mp4\)"):
        prepare("folder", layouts.root, output=layouts.root / "train")
    assert sorted(layouts.root.rglob("*")) == files


def test_the_lists_of_a_data_set_are_never_replaced(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set of docs/data.md, with its index in the folder of the lists."""
    layouts.video("a.mp4")
    for split in ("train", "val"):
        layouts.text(f"{split}.csv", ["a.mp4,run"])

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


def test_figures_of_tools_and_files_of_systems_are_no_videos(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    for path in ("__MACOSX/run", "train/run/.AppleDouble", "train/@eaDir"):
        layouts.video(f"{path}/0.mp4")
        layouts.frames(f"{path}/frames")
    prepare("folder", layouts.root)
    classes = (layouts.root / "index/classes.txt").read_text()
    layouts.text("runs/find_lr/lr_range.png", [])
    layouts.text("runs/test/results.png", [])
    layouts.text("runs/a/log.jsonl", [])
    layouts.text("runs/a/network.confusion.png", [])

    prepare("folder", layouts.root, overwrite=True)

    assert (layouts.root / "index/classes.txt").read_text() == classes


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
