"""Annotation lists, csv files and folders per class, read into records."""

from __future__ import annotations

import pytest

from ffn.data import Record, read_annotations, read_classes


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


@pytest.mark.parametrize(
    ("name", "text", "classes", "message"),
    [
        ("a.csv", "path,label\nx,jmp\n", ["jump", "run"], r"a\.csv:2: .*'jmp'.*closest is 'jump'"),
        ("a.txt", "x 2\n", ["jump", "run"], r"a\.txt:1: label 2 .* 2 classes; expected 0 … 1"),
        ("a.txt", "x 0\ny run\nz 1\n", None, r"a\.txt:2: label 'run' differs in kind"),
        ("a.csv", "video_id,label\nx,1\n", None, r"a\.csv:1: no column for the path.*video_path"),
        ("a.csv", "path,label\nx\n", None, r"a\.csv:2: 1 cells, but the header has 2"),
        ("a.csv", "path,label\nx,\n", None, r"a\.csv:2: the label is empty"),
        ("a.csv", "path,label,frames\nx,1,many\n", None, r"a\.csv:2: frames is 'many'"),
        ("a.csv", "path,label,start,end\nx,1,3,2\n", None, r"a\.csv:2: start 3\.0 s is not before"),
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


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt do not exist"):
        read_annotations(tmp_path / "none.txt")
    with pytest.raises(FileNotFoundError, match=r"names\.txt does not exist"):
        read_classes(tmp_path / "names.txt")
