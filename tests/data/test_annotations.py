"""Annotation lists, csv files and folders per class, read into records."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffn.data import Record, read_annotations, read_classes
from ffn.data.tool_files import TOOL_FILES


@pytest.fixture
def write(tmp_path):
    def write(text, name="train.txt"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def at(folder, *paths):
    return [str(folder / path) for path in paths]


def test_path_and_label(write, tmp_path):
    records, classes = read_annotations(write("a.mp4 0\nsub/my clip 2.mp4 2\n\nb.mp4\t1\n"))
    assert [r.path for r in records] == at(tmp_path, "a.mp4", "sub/my clip 2.mp4", "b.mp4")
    assert [r.label for r in records] == [0, 2, 1]
    assert all(r.frames is None for r in records)
    assert classes == ["0", "1", "2"]


def test_path_frames_and_label(write, tmp_path):
    records, _ = read_annotations(write("clip one 12 0\nv2 30 1\n"))
    assert records == [
        Record(str(tmp_path / "clip one"), 0, 12),
        Record(str(tmp_path / "v2"), 1, 30),
    ]


def test_root_applies_to_relative_paths_only(write, tmp_path):
    records, _ = read_annotations(write("a.mp4 0\n/abs/b.mp4 0\n"), root=tmp_path / "videos")
    assert [r.path for r in records] == [str(tmp_path / "videos/a.mp4"), "/abs/b.mp4"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a.mp4 0\nmy clip 12 0\nb.mp4 1\n", 2),  # one with a number among others without
        ("v1 10 0\nv2 1\nv3 12 1\n", 2),  # and the reverse
        ("a.mp4 0\n\nb.mp4\n", 3),
        ("v1 0 3\nv2 9 3\n", 1),
    ],
)
def test_ambiguous_lines_are_refused(text, line, write):
    with pytest.raises(ValueError, match=rf"train\.txt:{line}: "):
        read_annotations(write(text))


def test_csv_with_names(write, tmp_path):
    text = "\ufeffVideo,class,num_frames,start,end,note\n"
    text += '"a, b.mp4",walk,,1.5,3,x\nc d.mp4,run,40,,,"y, z"\n'
    records, classes = read_annotations(write(text, "train.csv"))
    assert classes == ["run", "walk"]
    assert records == [
        Record(str(tmp_path / "a, b.mp4"), 1, None, 1.5, 3.0),
        Record(str(tmp_path / "c d.mp4"), 0, 40),
    ]


def test_validation_uses_the_classes_of_training(write):
    _, classes = read_annotations(write("path,label\na,run\nb,jump\nc,walk\n", "train.csv"))
    records, same = read_annotations(write("path,label\nd,walk\n", "val.csv"), classes=classes)
    assert records[0].label == 2
    assert same == classes == ["jump", "run", "walk"]


def test_classes_from_a_file(write):
    names = write("walk\nrun\n\n", "classes.txt")
    assert read_classes(names) == ["walk", "run"]
    records, classes = read_annotations(write("path,label\na,run\n", "a.csv"), classes=names)
    assert (records[0].label, classes) == (1, ["walk", "run"])
    with pytest.raises(ValueError, match="'run' more than once"):
        read_classes(write("run\nrun\n", "twice.txt"))


def test_names_may_be_digits(write):
    records, _ = read_annotations(write("a 7\nb 3\n"), classes=["3", "5", "7"])
    assert [r.label for r in records] == [2, 0]


def test_folder_per_class(tmp_path):
    for name in ("run/b.mp4", "run/a 1.webm", "run/notes.txt", "jump/.cache/x", "jump/v3/1.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    records, classes = read_annotations(tmp_path)
    assert classes == ["jump", "run"]
    assert [(r.path, r.label) for r in records] == list(
        zip(at(tmp_path, "jump/v3", "run/a 1.webm", "run/b.mp4"), [0, 1, 1], strict=True)
    )
    (tmp_path / "walk").mkdir()
    with pytest.raises(ValueError, match="walk contains no video"):
        read_annotations(tmp_path)


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.mark.parametrize("name", TOOL_FILES)
def test_folders_of_tools_are_no_classes(tmp_path, name):
    touch(tmp_path, "jump/a.mp4", "run/b.mp4", f"out/{name}", f"runs/a/{name}", "runs/a/x/y.png")
    records, classes = read_annotations(tmp_path)
    assert classes == ["jump", "run"]
    assert len(records) == 2


@pytest.mark.parametrize("video", ["runs/z.mp4", "runs/z/1.jpg"])
def test_a_folder_of_a_tool_in_a_class_is_refused(tmp_path, video):
    touch(tmp_path, "jump/a.mp4", video, "runs/a/log.jsonl", "runs/a/results.png")
    with pytest.raises(ValueError, match=r"a tool wrote .*runs/a; .*Move it out of runs"):
        read_annotations(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "classes", "message"),
    [
        ("a.csv", "path,label\nx,jmp\n", ["jump", "run"], r"a\.csv:2: .*'jmp'.*closest is 'jump'"),
        ("a.txt", "x 2\n", ["jump", "run"], r"a\.txt:1: label 2 .* 2 classes; expected 0 … 1"),
        ("a.txt", "x 0\ny run\nz 1\n", None, r"a\.txt:2: label 'run' differs in kind"),
        ("a.csv", "video_id,label\nx,1\n", None, r"a\.csv:1: no column for the path.*video_path"),
        ("a.csv", "path,label\nx\n", None, r"a\.csv:2: 1 cell\(s\), but the header has 2"),
        ("a.csv", "path,label\nx,\n", None, r"a\.csv:2: the label is empty"),
        ("a.csv", "path,label,frames\nx,0,many\n", None, r"a\.csv:2: frames is 'many'"),
        ("a.csv", "path,label,start,end\nx,0,3,2\n", None, r"a\.csv:2: start 3\.0 s is not before"),
        ("a.txt", "\n\n", None, r"a\.txt contains no video"),
    ],
)
def test_errors_name_file_and_line(name, text, classes, message, write):
    with pytest.raises(ValueError, match=message):
        read_annotations(write(text, name), classes=classes)


def test_a_missing_list_beside_a_folder_suggests_the_folder(tmp_path):
    (tmp_path / "train" / "jump").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="the folder train exists: use its name"):
        read_annotations(tmp_path / "train.csv")


def test_a_missing_list_beside_an_index_suggests_the_index(tmp_path):
    (tmp_path / "index").mkdir()
    for name in ("train.csv", "val.csv", "classes.txt"):
        (tmp_path / "index" / name).touch()
    options = "data.train=index/train.csv data.val=index/val.csv data.classes=index/classes.txt"
    with pytest.raises(FileNotFoundError, match=f"index holds an index: {options}"):
        read_annotations(tmp_path / "train.csv")


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt do not exist"):
        read_annotations(tmp_path / "none.txt")
    with pytest.raises(FileNotFoundError, match=r"names\.txt does not exist"):
        read_classes(tmp_path / "names.txt")


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
@pytest.mark.parametrize("name", ["train.txt", "train.tsv", "train.csv", "train"])
def test_a_header_makes_a_table_in_a_file_of_any_name(separator, name, write, tmp_path):
    lines = [["video", "frames", "label"], ["a b.mp4", "9", "long jump"], ["c.mp4", "", "run"]]
    text = "\n".join(separator.join(cells) for cells in lines)
    records, classes = read_annotations(write(text, name))
    assert classes == ["long jump", "run"]
    assert records == [
        Record(str(tmp_path / "a b.mp4"), 0, 9),
        Record(str(tmp_path / "c.mp4"), 1),
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("video_name class_name\na.mp4 run\n", 1, "looks like a header"),
        ("path label\na run\n", 1, "looks like a header"),
        ("name\tkind\na.mp4\trun\nb.mp4\tjump\n", 1, "looks like a header"),
        ("video_id\tlabel\na.mp4\trun\n", 1, "no column for the path"),
        ("a.mp4,run\nb c.mp4,long jump\n", 1, "separated by commas"),
        ("v1;run\nv2;long jump\n", 1, "separated by commas or semicolons"),
        ('a.mp4 run\n"b c.mp4" run\n', 2, "starts with a quote"),
        ("a.mp4 run\nv_001 long jump\n", 2, "may end at any blank"),
        ("a.mp4 b.mp4 run\n", 1, "may end at two places"),
        ("a.mp4 dir/v 3\n", 1, "may end after 'a.mp4' or later"),
        ("a.mp4 100 long jump\n", 1, "100 is the number of frames, or the start of the label"),
        ("v1 10 250 3\n", 1, "two numbers before the label"),
        ("a.mp4 10 250 3\n", 1, "ambiguous"),
        ("run a.mp4\n", 1, "label 'a.mp4' is a video"),
        ("a.mp4\trun\t3\nb.mp4\trun\t4\n", 1, "has 3 columns, separated by tabs"),
        ("a.mp4 1\nb.mp4 20231122\n", 2, "label 20231122 is no class index; expected 0 … 99999"),
        ("a.mp4 0\nb.mp4 " + "9" * 4000, 2, "is no class index"),
        ("a 1\nb 2\nc 2\n", 2, "no video has label 0; .* subtract 1 from every label, or give all"),
        (
            "a 0\nb 9\n",
            2,
            r"makes 10 classes, but no video has label 1, 2, 3, 4, 5 …; .*data\.class",
        ),
        ("a.mp4 run\nb\0.mp4 run\n", 2, r"control character '\\x00'"),
    ],
)
def test_lists_that_were_read_wrongly(text, line, message, write):
    with pytest.raises(ValueError, match=rf"train\.txt:{line}: .*{message}") as caught:
        read_annotations(write(text))
    assert str(caught.value).isprintable()


def test_class_names_with_spaces_follow_a_video_suffix(write, tmp_path):
    records, classes = read_annotations(write("my clip.MP4 long jump\nb.webm run\nframes/v3 run\n"))
    assert classes == ["long jump", "run"]
    assert [r.path for r in records] == at(tmp_path, "my clip.MP4", "b.webm", "frames/v3")
    records, classes = read_annotations(write("v 1\tlong jump\nv 2\tup/down\n"))
    assert ([r.path for r in records], classes) == (
        at(tmp_path, "v 1", "v 2"),
        ["long jump", "up/down"],
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'path,label\na,run\n"b,run\nc,jump\n"d",run\n', r":3: an odd number of quotes"),
        (b'path,label\na,run\n"b" x,run\n', r":3: ',' expected after"),
        (b"path,label\n\nb\xe9,run\n", r":3: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (b"\xff\xfep\0a\0", r":1: byte 0xff is not UTF-8"),
        (b"path,label\na\0,run\n", r":2: control character '\\x00'"),
        (b"path,label\n" + b"a" * 200_000 + b",run\n", r":2: field larger than field limit"),
        (b"path,label\na," + b"b" * 5000 + b"\n", r":2: .* has 5,000 characters; at most 4,096"),
        (b"path,label,label\na,run,1\n", r":1: the header has 'label' twice"),
        (
            b"path,label,start\na,run,nan\n",
            r":2: start is 'nan'; expected a number, seconds from 0",
        ),
        (b"path,label,frames\na,run,-3\n", r":2: frames is '-3'"),
    ],
)
def test_damaged_csv(content, message, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.csv{message}") as caught:
        read_annotations(path)
    assert len(str(caught.value)) < 500


def test_indices_of_classes_whose_names_are_numbers_are_refused(write):
    """Label 1 would be the class "5", the second name."""
    with pytest.raises(ValueError, match=r"label '1' is not one of the 3 classes"):
        read_annotations(write("a 1\n"), classes=["3", "5", "7"])
    with pytest.raises(ValueError, match=r"train\.txt:2: label '1' is not one of the 2 classes"):
        read_annotations(write("a run\nb 1\n"), classes=["jump", "run"])


def files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_folders_that_are_no_classes_are_refused(tmp_path):
    single = files(tmp_path / "single", "videos/a.mp4", "videos/b.mp4")
    with pytest.raises(ValueError, match=r"single has the single class 'videos'.*data\.train=LIST"):
        read_annotations(single)
    assert len(read_annotations(single, classes=["videos", "x"])[0]) == 2  # as a validation folder

    listed = files(tmp_path / "listed", "a/1.mp4", "b/2.mp4", "train.csv", "val.csv")
    message = r"holds train\.csv, val\.csv beside the folders a, b.* data\.train=train\.csv\)"
    with pytest.raises(ValueError, match=message):
        read_annotations(listed)

    root = files(tmp_path / "root", "1.mp4", "train.csv", "index/dataset.json")
    with pytest.raises(ValueError, match=r"root holds train\.csv beside no folder of a class"):
        read_annotations(root)

    high = files(tmp_path / "high", "train/run/1.mp4", "val/run/2.mp4")
    with pytest.raises(ValueError, match=r"train/run holds no images.* give .*data\.train=train"):
        read_annotations(high)


def test_folders_that_a_tool_wrote_are_no_classes(tmp_path):
    files(tmp_path, "run/a.mp4", "jump/b.mp4", "classes.txt", "README.txt")
    files(tmp_path, "index/dataset.json", "index/split1/train.csv", "store/store.json")
    files(tmp_path, "train.check/report.csv", "runs/log.jsonl")
    assert read_annotations(tmp_path)[1] == ["jump", "run"]
    files(tmp_path, "store 2/store.jpg", "store 2/c.mp4")  # a class
    assert read_annotations(tmp_path)[1] == ["jump", "run", "store 2"]


def test_folders_that_are_numbers_with_frames_and_label(write):
    """The lists of TSM's scripts for Something-Something: folder, frames, label."""
    records, _ = read_annotations(write("100218 42 1\n7 30 0\n"))
    rows = [(Path(r.path).name, r.frames, r.label) for r in records]
    assert rows == [("100218", 42, 1), ("7", 30, 0)]
