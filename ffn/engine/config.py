"""Load a config: defaults, a YAML file and ``key=value`` overrides, checked before use.

A file names only what differs from the defaults in ``options.py``. All problems of a config are
reported together: unknown options, wrong types, values out of range, contradictions. Nothing here
imports torch, unless a package in ``imports`` does.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from yaml.constructor import ConstructorError

from ffn.engine.options import Config
from ffn.engine.task_options import TASK_OPTIONS, TaskOptions
from ffn.registry import import_extensions

# Options that may change when a run is resumed, as may `train.epochs`, which may grow.
RESUMABLE = (
    "imports",
    "log",
    "data.root",
    "data.store",
    "data.store_cache_gib",
    "data.workers",
    "data.timeout",
    "data.decoder",
    "data.cache_gib",
    "data.on_error",
    "train.grad_accum_steps",
    "train.views",
    "train.activation_checkpointing",
    "train.compile",
    "train.deterministic",
    "train.patience",
    "train.save_steps",
    "train.keep_checkpoints",
)
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class ConfigError(ValueError):
    """A config that cannot be used; the message has a line for each problem.

    Attributes:
        problems: these lines.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n  ".join(problems))
        self.problems = problems


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, a YAML file and ``key=value`` overrides into one checked config.

    If an override of ``task.name`` replaces the task of the file, the options that only the file's
    task has are left out; its ``task.ranges`` too, if ``task.frames`` is overridden as well.

    The packages in ``imports`` are imported first, so that their tasks and models are known.

    Raises:
        ConfigError: the file is missing or invalid, or options are unknown, of a wrong type, out of
            range or contradictory. The message lists all problems.
        ExtensionError: a package cannot be imported.
    """
    values = {} if path is None else _read_file(Path(path))
    given = _read_overrides(overrides)
    names = {**values, **given}.get("imports") or []
    import_extensions([names] if isinstance(names, str) else names)
    old, new = values.get("task", {}), given.get("task", {})
    before, name = (task.get("name", "flexible") for task in (old, {**old, **new}))
    if name != before and name in TASK_OPTIONS:
        values["task"] = {key: old[key] for key in old.keys() & TASK_OPTIONS[name].model_fields}
        if "frames" in new:
            values["task"].pop("ranges", None)
    for section, options in given.items():
        is_section = isinstance(options, dict)
        values[section] = {**values.get(section, {}), **options} if is_section else options
    return config_from_dict(values)


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """The config of nested values, such as those of ``config.model_dump()``.

    Its ``imports`` are not imported: it may come from a file of someone else.

    Raises:
        ConfigError: as :func:`load_config`; its task may also be unknown.
    """
    task = str(values.get("task", {}).get("name", "flexible"))
    if task not in TASK_OPTIONS:
        close = difflib.get_close_matches(task, TASK_OPTIONS, n=1) or list(TASK_OPTIONS)
        raise ConfigError(
            f"task.name is {task!r}; did you mean {' or '.join(close)}? A task of your own needs "
            "imports=[PACKAGE]"
        )
    kind = Config[TASK_OPTIONS[task]]
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [text for one in error.errors() for text in _problem(one, kind)]
        raise ConfigError(*problems) from None


def changed_options(before: Mapping[str, Any], now: Config) -> list[str]:
    """Options, with both values, that keep a run from being resumed; see `RESUMABLE`.

    Args:
        before: the config of the run, as its ``model_dump`` returned it.
        now: the config given.
    """
    old, new = (_leaves(one.model_dump()) for one in (config_from_dict(before), now))
    longer = old["train.epochs"] < new["train.epochs"]
    allowed = (*RESUMABLE, *(["train.epochs"] if longer else []))
    return [
        f"{key} {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(allowed)
    ]


def option_help() -> str:
    """One line per option: key, default, meaning, choices; those of each task under its name."""
    lines = [_help_line("imports", Config.model_fields["imports"])]
    for section in _sections():
        kind = TaskOptions if section == "task" else Config.model_fields[section].annotation
        lines += [_help_line(f"{section}.{n}", f) for n, f in kind.model_fields.items()]
    for task, options in TASK_OPTIONS.items():
        own = {n: f for n, f in options.model_fields.items() if n not in TaskOptions.model_fields}
        lines += [f"{_help_line(f'task.{n}', f)} [task.name={task}]" for n, f in own.items()]
    return "\n".join(lines)


def _help_line(key: str, option: FieldInfo) -> str:
    """Key, default as YAML, meaning, and the accepted words or range."""
    default = option.get_default(call_default_factory=True)
    if default is None or isinstance(default, bool):
        default = {None: "null", True: "true", False: "false"}[default]
    words = [word for word in get_args(option.annotation) if isinstance(word, str)]
    limits = [
        f"{s} {getattr(m, n)}" for m in option.metadata for n, s in SIGNS.items() if hasattr(m, n)
    ]
    accepted = "|".join(words) or ", ".join(limits)
    meaning = " ".join((option.description or "").split()).rstrip(".")
    text = f"  {f'{key}={default}':<44} {meaning}"
    return f"{text} ({accepted})" if accepted else text


def _problem(error: Mapping[str, Any], kind: type[Config]) -> list[str]:
    """Lines about an error of pydantic: key, value, what is accepted, the closest key."""
    key = ".".join(part for part in error["loc"] if isinstance(part, str))
    if error["type"] == "extra_forbidden":
        inside = error["input"] if isinstance(error["input"], dict) else ()
        keys = [f"{key}.{name}" for name in inside] or [key]
        return [f"unknown option {one}; {_hint(one, kind)}" for one in keys]
    if "error" in error.get("ctx", {}):  # of a validator of ours
        return str(error["ctx"]["error"]).splitlines()
    message = error["msg"][0].lower() + error["msg"][1:]
    return [f"{key} is {reprlib.repr(error['input'])[:100]}; {message}"]


def _hint(key: str, kind: type[Config]) -> str:
    fields = {
        section: kind.model_fields[section].annotation.model_fields for section in _sections()
    }
    keys = [f"{section}.{option}" for section, options in fields.items() for option in options]
    same = [known for known in keys if known.rpartition(".")[2] == key.rpartition(".")[2]]
    close = same or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "ffn train --help lists all"


def _sections() -> list[str]:
    return [name for name in Config.model_fields if name != "imports"]


def _leaves(values: Mapping[str, Any]) -> dict[str, Any]:
    """Value of every option by its key."""
    found = {"imports": values["imports"]}
    for section in _sections():
        found |= {f"{section}.{key}": value for key, value in values[section].items()}
    return found


class _TextLoader(yaml.BaseLoader):
    """Reads mappings, lists and texts; a key may not be given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise ConstructorError(None, None, f"{twice[0]} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read_yaml(text: str | bytes, source: str) -> Any:
    try:
        return yaml.load(text, _TextLoader)
    except (yaml.YAMLError, RecursionError) as error:
        cause = " ".join(str(error).split())
        raise ConfigError(f"{source} is not valid YAML: {cause}") from error


def _read_file(path: Path) -> dict[str, Any]:
    """Mappings, lists and texts of a YAML file, by section."""
    if not path.is_file():
        raise ConfigError(f"no config file {path}; ffn configs lists the ones that ship")
    loaded = _read_yaml(path.read_bytes(), str(path)) or {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} holds no options; expected YAML with keys such as train.epochs")
    for section in loaded.keys() & {*_sections()}:
        if not isinstance(loaded[section] or {}, dict):
            raise ConfigError(f"{path}: {section} is {loaded[section]!r}; expected options")
        loaded[section] = loaded[section] or {}
    return loaded


def _read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Nested values of ``key=value`` texts; lists and mappings are YAML."""
    found: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not section:
            raise ConfigError(f"{text!r} is not key=value (e.g. train.epochs=10)")
        if not name and section in _sections():
            raise ConfigError(f"{text!r} sets a section; give its options, {section}.KEY=value")
        parsed: Any = value.strip()
        if parsed.startswith(("[", '"', "'")) or (parsed.startswith("{") and ": " in parsed):
            parsed = _read_yaml(parsed, repr(text))
        if name:
            found.setdefault(section, {})[name] = parsed
        else:
            found[section] = parsed
    return found
