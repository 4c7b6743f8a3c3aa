"""Mutated configs: each has the values of an independent reading, or a message about the option."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_toys import every_option
from engine_toys import ROOT

from ffn.engine.config import ConfigError, load_config

BAD = object()  # not a value
# Texts, and what they are by hand: text, None, list or mapping; on the command line, in a file.
TEXTS: list[tuple[str, Any, Any]] = [
    *((text, text, text) for text in ("3", "-1", "0", "1.5", "1e3", ".5", "007", "1_000", "0x10")),
    *((text, text, text) for text in ("nan", "inf", "-.inf", "1e999", "9" * 40, "1:30", "???")),
    *(
        (text, text, text)
        for text in ("true", "off", "Yes", "no", "2023-11-22", "many", "été", "=")
    ),
    *(
        (text, text, text)
        for text in ("${HOME}", "${oc.env:HOME}", "norms", "random", "auto", "4,8")
    ),
    *((text, text, BAD) for text in ("@work", "`x`", "%x", "*a", "a: b: c", "!tag x", "!!int 3")),
    *((text, None, None) for text in ("null", "~", "")),
    ("[4,8]", ["4", "8"], ["4", "8"]),
    ("[20,40", BAD, BAD),
    ("[]", [], []),
    ("{}", {}, {}),
    ("{a: 1}", {"a": "1"}, {"a": "1"}),
    ("{a: 1, a: 2}", BAD, BAD),
    ("{", BAD, BAD),
    ("'7'", "7", "7"),
    ('"null"', "null", "null"),
    ('"x', BAD, BAD),
    ("[[2,5],[6,11],[12,20]]", *[[["2", "5"], ["6", "11"], ["12", "20"]]] * 2),
    ("[[[1]]]", [[["1"]]], [[["1"]]]),
    ("[0.5,1.0]", ["0.5", "1.0"], ["0.5", "1.0"]),
    ("[null]", [None], [None]),
    ("[1,nan,true]", ["1", "nan", "true"], ["1", "nan", "true"]),
    ("[" * 600, BAD, BAD),
    ("a\tb", "a\tb", BAD),
    ("a: b", "a: b", BAD),
    ("# note", "# note", None),
    ("&a 3", "&a 3", "3"),
]
OPTIONAL = {
    "model.weights": str,
    "data.classes": str,
    "data.frame_pattern": str,
    "data.randaugment": str,
    "train.clip_grad_norm": float,
    "train.freeze_blocks": int,
    "optim.base_batch_size": int,
}
ITEMS = {
    "task.draws": [int],
    "task.ranges": [int],
    "data.flip_pairs": [str],
    "optim.milestones": float,
    "train.class_weight_list": float,
    "train.freeze_modules": str,
}
REMEDY = (
    "did you mean|choose|expected|give|must|check|needs|drop one|is now|save|write|--help|exactly"
)
WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
KEYS = sorted({*every_option()} - {"imports", "task.name"})


def meaning(key: str, tree: Any) -> Any:
    """The value of an option, read by the type of its default; BAD for another type."""
    default = every_option()[key]
    if key in OPTIONAL:
        return None if tree is None else scalar(OPTIONAL[key], tree)
    if not isinstance(default, list):
        return scalar(type(default), tree)
    kind = ITEMS.get(key) or type(default[0])
    if isinstance(tree, str) and isinstance(kind, type):
        tree = [tree]
    return items(kind, tree)


def items(kind: Any, tree: Any) -> Any:
    if not isinstance(tree, list):
        return BAD
    found = [items(kind[0], one) if isinstance(kind, list) else scalar(kind, one) for one in tree]
    return BAD if any(one is BAD for one in found) else found


def scalar(kind: type, text: Any) -> Any:
    if not isinstance(text, str):
        return BAD
    if issubclass(kind, Enum):
        if kind.__name__ == "Wandb" and WORDS.get(text.lower()) is False:
            return kind.disabled
        return kind[text] if text in kind.__members__ else BAD
    if kind is bool:
        return WORDS.get(text.lower(), {"0": False, "1": True}.get(text, BAD))
    if kind is str:
        return BAD if "${" in text else text
    try:
        return kind(text.replace(".inf", "inf"))
    except ValueError:
        return BAD


def load(path: Path | None, overrides: list[str], key: str) -> tuple[Any, str]:
    """The value of an option, or BAD and the message."""
    try:
        config = load_config(path, overrides)
    except ConfigError as error:
        return BAD, str(error)
    section, name = key.split(".")
    return getattr(getattr(config, section), name), ""


@pytest.mark.parametrize("source", ["command line", "file"])
def test_one_option_with_another_value(source: str, tmp_path: Path) -> None:
    rng, read = random.Random(source), 0
    for number in range(600):
        key, (text, *trees) = rng.choice(KEYS), rng.choice(TEXTS)
        section, name = key.split(".")
        path = tmp_path / f"config_{number}.yaml"
        path.write_text(f"{section}:\n  {name}: {text}\n", encoding="utf-8")
        is_file = source == "file"
        tree = trees[is_file]
        expected = BAD if tree is BAD else meaning(key, tree)

        found, message = load(path if is_file else None, [] if is_file else [f"{key}={text}"], key)

        where = (key, text[:80], message)
        if found is not BAD:
            assert (found, type(found)) == (expected, type(expected)), where
            read += 1
            continue
        assert key in message or (is_file and re.search("line |nested", message)), where
        assert str(path) in message or not is_file, where
        lines = message.splitlines()
        assert len(lines) <= 3, where
        assert all(line.isprintable() for line in lines), where
        assert max(map(len, lines)) < 500, where
        assert not re.search("Node|Config[^_]|Invalid|Traceback|yaml\\.", message), where
        if expected is not BAD:  # the type is right: the value is out of range or contradicts
            assert re.search("must|need|expected|exclude|extra|smaller|fit|give", message), where
    assert read > 60


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few bytes or lines of a file changed."""
    lines = data.split(b"\n")
    i, j = rng.randrange(len(data)), rng.randrange(len(lines))
    noise = [
        b"\xe9",
        b"\0",
        b"\t",
        b" ",
        b":",
        b"[",
        b"]",
        b"{",
        b'"',
        b"#",
        b"-",
        b"9",
        b".",
        b"&",
    ]
    return rng.choice(
        [
            lambda: data[:i] + rng.choice(noise) + data[i:],
            lambda: data[:i] + rng.choice(noise) + data[i + 1 :],
            lambda: data[:i] + data[i + 1 :],
            lambda: data[:i],
            lambda: b"\n".join([*lines[:j], *lines[j + 1 :]]),
            lambda: b"\n".join([*lines[: j + 1], *lines[j:]]),
            lambda: b"\n".join([*lines[:j], b"  " + lines[j], *lines[j + 1 :]]),
            lambda: b"\n".join([*lines[:j], lines[j].strip(), *lines[j + 1 :]]),
            lambda: data.swapcase(),
            lambda: data.replace(b"true", rng.choice([b"on", b"Yes", b"TRUE", b"1", b"maybe"])),
        ]
    )()


def test_shipped_config_with_a_mutation(tmp_path: Path) -> None:
    """A config that loads has the values that PyYAML reads."""
    rng, read = random.Random(0), 0
    shipped = [
        "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
        for path in sorted((ROOT / "configs").rglob("*.yaml"))
    ]
    for number in range(500):
        data = mutate(rng, rng.choice(shipped).encode())
        path = tmp_path / f"config_{number}.yaml"
        path.write_bytes(data)
        try:
            config = load_config(path)
        except ConfigError as error:
            message, problems = str(error), error.problems
            check_refusal(str(path), message, problems)
            continue
        read += 1
        for section, options in (yaml.safe_load(data) or {}).items():
            for name, value in (options or {}).items():
                found = getattr(getattr(config, section), name)
                assert plain(found) == plain(value, type(found)), (section, name, data)
    assert 100 < read < 400


def check_refusal(path: str, message: str, problems: Sequence[str]) -> None:
    """Each problem has file, line and remedy; the message has at most three printable lines."""
    for problem in problems:
        assert path in problem, problem
        assert re.search(r": lines? \d", problem), problem
        assert re.search(REMEDY, problem), problem
    lines = message.splitlines()
    assert len(lines) <= 3, message
    assert all(line.isprintable() and len(line) < 500 for line in lines), message


def plain(value: Any, kind: type = object) -> Any:
    """A value for comparison: numbers as floats, words of YAML as in the declared type."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, Enum):
        return value.value
    if kind is list:
        return [plain(value)]
    if kind is bool:
        return bool(value)
    if kind is float or isinstance(value, (int, float)):
        return float(value)
    return value
