"""Annotation lists, csv files and folders per class, read into records."""

from __future__ import annotations

import csv
import io
import random
import re

import pytest

from ffn.data import Record, label_text, read_annotation_rows, read_annotations, read_classes
from ffn.data.suffixes import TOOL_FILES


@pytest.fixture
def write(tmp_path):
    def write(text, name="train.txt"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def at(folder, *paths):
    return [str(folder / path) for path in paths]


def files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_path_and_label(write, tmp_path):
    path = write("a.mp4 0\nsub/my clip 2.mp4 2\n\nb.mp4\t1\n")
    records, classes = read_annotations(path)
    assert [r.path for r in records] == at(tmp_path, "a.mp4", "sub/my clip 2.mp4", "b.mp4")
    moved, _ = read_annotations(path, root=tmp_path / "videos")
    assert moved[0].path == str(tmp_path / "videos/a.mp4")
    assert [r.label for r in records] == [0, 2, 1]
    assert all(r.frames is None for r in records)
    assert classes == ["0", "1", "2"]


def test_csv_with_names(write, tmp_path):
    text = "\ufeffVideo,class,num_frames,start,end,note\n"
    text += '"a, b.mp4",walk,,1.5,3,x\nc d.mp4,run,40,,,"y, z"\n'
    records, classes = read_annotations(write(text, "train.csv"))
    assert classes == ["run", "walk"]
    assert records == [
        Record(str(tmp_path / "a, b.mp4"), 1, None, 1.5, 3.0),
        Record(str(tmp_path / "c d.mp4"), 0, 40),
    ]


def test_classes_from_a_file(write):
    names = write("walk\nrun\n\n", "classes.txt")
    records, classes = read_annotations(write("path,label\na,run\n", "a.csv"), classes=names)
    assert (records[0].label, classes) == (1, ["walk", "run"])
    with pytest.raises(ValueError, match="'run' more than once"):
        read_classes(write("run\nrun\n", "twice.txt"))


def test_folder_per_class(tmp_path):
    files(tmp_path, "run/b.mp4", "run/a 1.webm", "run/notes.txt", "jump/.cache/x", "jump/v3/1.jpg")
    records, classes = read_annotations(tmp_path)
    assert classes == ["jump", "run"]
    assert [(r.path, r.label) for r in records] == list(
        zip(at(tmp_path, "jump/v3", "run/a 1.webm", "run/b.mp4"), [0, 1, 1], strict=True)
    )
    (tmp_path / "walk").mkdir()
    with pytest.raises(ValueError, match="walk contains no video"):
        read_annotations(tmp_path)


def test_lists_that_can_be_read_wrongly_are_refused(write):
    """The message has the line."""
    for line, text in (
        (2, "a.mp4 0\nmy clip 12 0\nb.mp4 1\n"),  # one with a number among others without
        (2, "v1 10 0\nv2 1\nv3 12 1\n"),  # and the reverse
        (3, "a.mp4 0\n\nb.mp4\n"),
        (1, "v1 0 3\nv2 9 3\n"),
        (1, "path label\na run\n"),
        (1, "clip action\na.mp4 push\nb.mp4 pull\n"),
        (1, "video_id\tlabel\na.mp4\trun\n"),
        (1, "a.mp4,run\nb c.mp4,long jump\n"),
        (1, "v1;run\nv2;long jump\n"),
        (2, 'a.mp4 run\n"b c.mp4" run\n'),
        (2, "a.mp4 run\nv_001 long jump\n"),
        (1, "a.mp4 b.mp4 run\n"),
        (1, "a.mp4 dir/v 3\n"),
        (1, "a.mp4 100 long jump\n"),
        (1, "a.mp4 long jump\n"),
        (1, "v1 10 250 3\n"),
        (1, "run a.mp4\n"),
        (2, "a.mp4 1\nb.mp4 20231122\n"),
        (2, "a.mp4 0\nb.mp4 " + "9" * 4000),
        (2, "a 1\nb 2\nc 2\n"),
        (2, "a 0\nb 9\n"),
        (2, "x 0\ny run\nz 1\n"),
        (2, "a.mp4 run\nb\0.mp4 run\n"),
    ):
        with pytest.raises(ValueError, match=rf"train\.txt:{line}: ") as caught:
            read_annotations(write(text))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


def test_damaged_tables_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    for line, content in (
        (3, b'path,label\na,run\n"b,run\nc,jump\n"d",run\n'),
        (3, b'path,label\na,run\n"b" x,run\n'),
        (3, b"path,label\n\nb\xe9,run\n"),
        (1, b"\xff\xfep\0a\0"),
        (2, b"path,label\na\0,run\n"),
        (2, b"path,label\n" + b"a" * 200_000 + b",run\n"),
        (1, b"path,label,label\na,run,1\n"),
        (1, b"video_id,label\nx,1\n"),
        (2, b"path,label\nx\n"),
        (2, b"path,label\nx,\n"),
        (2, b"path,label,start\na,run,nan\n"),
        (2, b"path,label,frames\na,run,-3\n"),
        (2, b"path,label,start,end\nx,0,3,2\n"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.csv:{line}: ") as caught:
            read_annotations(path)
        assert len(str(caught.value)) < 500
    path.write_text("\n\n")
    with pytest.raises(ValueError, match="contains no video"):
        read_annotations(path)
    path.write_text("path,label\nx,jmp\n")
    with pytest.raises(ValueError, match="closest is 'jump'"):
        read_annotations(path, classes=["jump", "run"])


def test_classes_whose_names_are_numbers(write):
    """Label 1 is not the second name, "5"."""
    records, _ = read_annotations(write("a 7\nb 3\n"), classes=["3", "5", "7"])
    assert [r.label for r in records] == [2, 0]
    for text, classes in (("a 3\nb 1\n", ["3", "5", "7"]), ("a run\nb 1\n", ["jump", "run"])):
        with pytest.raises(ValueError, match=r"train\.txt:2: "):
            read_annotations(write(text), classes=classes)


def test_labels_beside_class_names_with_numbers_are_not_shifted(write):
    for classes, labels, expected in (
        (["1 A", "2 B", "3 C"], "1 2", None),
        (["A\t1", "B\t2", "C\t3"], "2 0", None),
        (["01-A", "02-B"], "1 0", None),
        (["0 A", "1 B", "2 C"], "1 2", [1, 2]),
        (["A1", "B2", "C3"], "1 2", None),
        ([f"size {10 * i}" for i in range(12)], "10 0", [10, 0]),
        (["1 A", "B", "C"], "1 2", [1, 2]),
    ):
        text = "".join(f"v{i}.mp4 {label}\n" for i, label in enumerate(labels.split()))
        if expected is not None:
            assert [r.label for r in read_annotations(write(text), classes=classes)[0]] == expected
            continue
        with pytest.raises(ValueError, match=r"train\.txt:1: label ."):
            read_annotations(write(text), classes=classes)


def test_class_lists_in_other_formats_are_refused(write):
    json = ('["run"]', '[\n"run",\n"jump"\n]', '{"run": 0,\n"jump": 1}', '{\n"run": 0\n}')
    for text in (*json, "0: run\n1: jump", "- run\n", "id,name\n0,run", "label\nrun", "# a\nrun"):
        with pytest.raises(ValueError, match="one class name per line"):
            read_classes(write(text, "names.txt"))
    assert read_classes(write("[background]\nclassy\n", "names.txt")) == ["[background]", "classy"]


def test_the_unicode_forms_of_a_name_are_one_class(write, tmp_path):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    path = write(f"path,label\na,{composed}\nb,{decomposed}\nc,x\n", "a.csv")
    for classes in (None, [decomposed, "x"], write(f"{decomposed}\nx\n", "classes.txt")):
        records, names = read_annotations(path, classes=classes)
        assert ([r.label for r in records], names) == ([0, 0, 1], [composed, "x"])
    files(tmp_path / "root", f"{composed}/a.mp4", f"{decomposed}/b.mp4")
    records, names = read_annotations(tmp_path / "root")
    assert names == [composed]
    assert records[1].path.endswith(f"{composed}/a.mp4")  # paths are not changed
    assert records[0].path.endswith(f"{decomposed}/b.mp4")


def test_numbers_that_are_no_indices_are_no_names(write):
    for line, labels in ((2, "0.0 1.0 10.0"), (2, "-1 -1"), (3, "0 1.0"), (2, "1e0 2e0")):
        rows = "".join(f"v{i},{label}\n" for i, label in enumerate(labels.split()))
        with pytest.raises(ValueError, match=rf"a\.csv:{line}: .*class indices 0, 1"):
            read_annotations(write(f"path,label\n{rows}", "a.csv"))
    versions = write("path,label\na,1.5\nb,0.5\n", "a.csv")
    assert [r.label for r in read_annotations(versions, classes=["0.5", "1.5"])[0]] == [1, 0]


def test_lists_in_other_encodings_name_the_conversion(tmp_path):
    text = "path,label\na.mp4,caf\u00e9\nb.mp4,x\n"
    path = tmp_path / "a.csv"
    for encoding, named in (("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("cp1252", "1252")):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(ValueError, match=named):
            read_annotations(path)
    path.write_bytes(text.replace(",", ";").encode("utf-8-sig"))
    assert read_annotations(path)[1] == ["caf\u00e9", "x"]
    path.write_bytes(text.encode("utf-8-sig") * 2)  # two files in one
    with pytest.raises(ValueError, match=r"a\.csv:4: control character"):
        read_annotations(path)


def test_official_lists_are_refused_with_the_command_or_the_columns(write):
    for name, text, expected in (
        ("train.json", '[\n {\n  "id": "7",\n  "template": "Pushing [it]"}]', "ffn prepare sthv2"),
        ("train.csv", "label,youtube_id,time_start,time_end,split\n", "ffn prepare k400"),
        ("train.csv", "7;Thumb Up\n8;Thumb Down\n", "jester"),
        ("train.csv", "video_id,label,label_id\n7,Thumb Up,3\n", "ffn prepare jester"),
        ("testlist01.txt", "Archery/v_Archery_g01_c01.avi\n", "ffn prepare ucf101"),
        ("charades.csv", "id,subject,actions\nAB,S1,c092 1.0 2.0\n", "labels .several"),
        ("epic.csv", "video_id,start_timestamp,verb_class\nP01,00:01,3\n", "start and end"),
        ("ava.csv", "-5KQ,0902,0.07,0.15,80,1\n", "start and end"),
        ("activitynet.json", '{"database": {}}', "columns path and label"),
    ):
        with pytest.raises(ValueError, match=expected):
            read_annotations(write(text, name))


def test_folders_that_are_no_classes_are_refused(tmp_path):
    files(tmp_path, "root/1.mp4", "root/index/dataset.json", "high/train/run/1.mp4")
    files(tmp_path, "high/val/run/2.mp4", "in/run/a.mp4", "in/run/b/log.jsonl")
    for name in ("root", "high", "in"):
        with pytest.raises(ValueError, match=name):
            read_annotations(tmp_path / name)


def test_folders_that_a_tool_wrote_are_no_classes(tmp_path):
    files(tmp_path, "run/a.mp4", "jump/b.mp4", "classes.txt", "README.txt")
    files(tmp_path, "index/dataset.json", "index/split1/train.csv", "store/store.json")
    files(tmp_path, "train.check/report.csv", "runs/a/log.jsonl")
    files(tmp_path, *(f"out {name}/{name}" for name in TOOL_FILES))
    assert read_annotations(tmp_path)[1] == ["jump", "run"]
    files(tmp_path, "store 2/store.jpg", "store 2/c.mp4")  # a class
    assert read_annotations(tmp_path)[1] == ["jump", "run", "store 2"]


def test_cells_with_several_labels(write):
    for lines, expected, classes in (
        (["a.mp4,push|pull", "b.mp4,", "c.mp4,pull"], [(0, 1), (), (0,)], ["pull", "push"]),
        (["a.mp4, push | pull ", "b.mp4,push"], [(0, 1), (1,)], ["pull", "push"]),
        (['a.mp4,"push|pull, hard"'], [(0, 1)], ["pull, hard", "push"]),
        (["a.mp4,2|0", "b.mp4,1"], [(0, 2), (1,)], ["0", "1", "2"]),
    ):
        records, names = read_annotations(write("\n".join(["path,labels", *lines]), "l.csv"))
        assert ([record.label for record in records], names) == (expected, classes)
    # In a list with one label per video, a bar is part of the name.
    assert read_annotations(write("path,label\na,x|y", "l.csv"))[1] == ["x|y"]


def test_errors_of_several_labels_name_the_line(write):
    for line, lines in (
        (3, ["path,labels", "a,x", "b,x|q"]),
        (2, ["path,labels", "a,x|y|x"]),
        (2, ["path,labels", "a,1|01"]),
        (2, ["path,labels", "a,0|2"]),
        (3, ["path,labels", "", "a,x||y"]),
        (2, ["path,labels", "a,x|"]),
        (1, ["path,labels,label", "a,x,x"]),
        (2, ["path,labels", "a,x|b.mp4"]),
        (2, ["path,labels", "a,0 1"]),
        (1, ["labels,frames", "x,1"]),
        (1, ["path,frames", "x,1"]),
    ):
        with pytest.raises(ValueError, match=rf"l\.csv:{line}: "):
            read_annotations(write("\n".join(lines), "l.csv"), classes=["x", "y"])
    for lines in (["a,x|y", "b,x|1"], ["a,0|2", "b,"]):
        with pytest.raises(ValueError, match=r"l\.csv"):
            read_annotations(write("\n".join(["path,labels", *lines]), "l.csv"))


def test_text_of_a_label():
    assert [label_text(3), label_text((0, 2)), label_text(())] == ["3", "0|2", ""]
    assert label_text((0, 2), ["x", "y", "z"]) == "x|z"


PATHS = ("a.mp4", "b/c d.MP4", "v_1", "100218", "dir/é.webm", "x 9.avi")
NAMES = ("run", "long jump", "up/down")


def make(rng):
    """A list in one of the documented formats, and its rows."""
    counted, labels = rng.random() < 0.4, rng.choice([NAMES, "0127"])
    rows = [
        (rng.choice(PATHS), str(rng.randint(1, 300)) if counted else "", rng.choice(labels))
        for _ in range(rng.randint(1, 6))
    ]
    if rng.random() < 0.5:
        separator = rng.choice(["\t", " "])
        return "".join(separator.join(filter(None, row)) + "\n" for row in rows), rows
    header = (rng.choice(["path", "Video"]), "num_frames", rng.choice(["label", "class_name"]))
    order, text = rng.sample(range(3), 3), io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    table = csv.writer(text, delimiter=rng.choice(",\t;"), quoting=quoting, lineterminator="\n")
    table.writerows([cells[i] for i in order] for cells in (header, *rows))
    return text.getvalue(), rows


def at_random(rng, data, new, removed=0):
    i = rng.randrange(len(data))
    return data[:i] + new + data[i + removed :]


HARMLESS = (
    lambda rng, data: data,
    lambda rng, data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    lambda rng, data: data.replace(b"\n", b"\r"),
    lambda rng, data: b"\n \n" + data.replace(b"\n", b"\n\n"),
)
DAMAGE = (
    lambda rng, data: data[: rng.randrange(len(data))],
    lambda rng, data: at_random(rng, data, rng.choice([b" ", b"\t", b",", b'"', b"7"]), 1),
    lambda rng, data: at_random(rng, data, rng.choice([b"\xe9", b"\0", b"\n", b" 9 "])),
    lambda rng, data: data.replace(b"\t", b" "),
    lambda rng, data: data.replace(b" ", b"\t", 2),
    lambda rng, data: data.replace(b'"', b""),
    lambda rng, data: data.replace(b",", b";"),
    lambda rng, data: data.split(b"\n", 1)[1],  # without its header
    lambda rng, data: b"video_name class_name\n" + data,
    lambda rng, data: data * 300,
)


def read(path):
    """The rows that the reader finds in a list, or its message."""
    try:
        rows = read_annotation_rows(path)
    except ValueError as error:
        return None, str(error)
    lines = re.split("\r\n|\r|\n", path.read_bytes().decode("utf-8-sig"))
    for row in rows:  # nothing is invented
        line = lines[int(row.where.rpartition(":")[2]) - 1]
        assert all(word in line for word in f"{row.path} {row.frames} {row.label}".split())
    return [(row.path, row.frames, row.label) for row in rows], ""


def test_mutated_lists(tmp_path):
    """Their rows are read as they are written, or the list is refused with its line."""
    accepted = 0
    for number in range(500):
        rng = random.Random(number)
        text, rows = make(rng)
        is_harmless = rng.random() < 0.5
        data = rng.choice(HARMLESS if is_harmless else DAMAGE)(rng, text.encode())
        path = tmp_path / f"list_{number}{rng.choice(['.txt', '.tsv', ''])}"
        path.write_bytes(data)

        found, message = read(path)

        accepted += found is not None
        assert found is None or not is_harmless or found == rows, (number, data)
        if found is None:
            assert message.startswith(str(path)), message
            assert re.match(r":\d+: | contains no video; write ", message[len(str(path)) :])
            assert message.isprintable()  # one line
            assert len(message) < 700
    assert 150 < accepted < 450
