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
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from yaml.constructor import ConstructorError

from ffn.engine.options import Config
from ffn.engine.section import limits
from ffn.engine.task_options import TASK_OPTIONS, TaskOptions
from ffn.registry import ExtensionError, import_extensions

# Options that may change when a run is resumed, as may `train.epochs`, which may grow.
RESUMABLE = (
    "imports",
    "log",
    "data.root",
    "data.store",
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
        ConfigError: the file is missing or invalid, a package cannot be imported, or options are
            unknown, of a wrong type, out of range or contradictory. The message lists all problems.
    """
    values = {} if path is None else _read_file(Path(path))
    given = _read_overrides(overrides)
    _import({**values, **given})
    old, new = values.get("task", {}), given.get("task", {})
    before, name = (task.get("name", "flexible") for task in (old, {**old, **new}))
    if name != before and name in TASK_OPTIONS:
        values["task"] = {key: old[key] for key in old.keys() & TASK_OPTIONS[name].model_fields}
        if "frames" in new:
            values["task"].pop("ranges", None)
    for section, options in given.items():
        is_section = isinstance(options, dict)
        values[section] = {**values.get(section, {}), **options} if is_section else options
    return _checked(values)


def import_packages(path: str | Path | None, overrides: Sequence[str]) -> None:
    """Import the packages that a config file or overrides name in ``imports``.

    Raises:
        ConfigError: the file is missing or invalid, or a package cannot be imported.
    """
    _import({**({} if path is None else _read_file(Path(path))), **_read_overrides(overrides)})


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """Restore a config that :func:`config_to_dict` returned.

    Its ``imports`` are not imported: it may come from a file of someone else.

    Raises:
        ConfigError: it has options that this version does not have, or its task is not registered.
    """
    return _checked(values)


def config_to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dicts of plain values, for YAML and checkpoints."""
    return config.model_dump()


def option_keys(config: Config | None = None) -> list[str]:
    """The keys of all options, e.g. ``train.epochs``; without a config those of the default one."""
    return list(_leaves(config_to_dict(config or Config())))


def changed_options(before: Mapping[str, Any], now: Config) -> list[str]:
    """Options, with both values, that keep a run from being resumed; see `RESUMABLE`.

    Args:
        before: the config of the run, as :func:`config_to_dict` returned it.
        now: the config given.
    """
    old, new = (_leaves(config_to_dict(one)) for one in (config_from_dict(before), now))
    longer = old["train.epochs"] < new["train.epochs"]
    allowed = (*RESUMABLE, *(["train.epochs"] if longer else []))
    return [
        f"{key} {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(allowed)
    ]


def option_help() -> str:
    """One line per option: key, default, meaning, choices; those of each task under its name."""
    lines = []
    for section, field in Config.model_fields.items():
        if section == "imports":
            lines.append(_help_line(section, field))
        elif section == "task":
            lines += [_help_line(f"task.{n}", f) for n, f in TaskOptions.model_fields.items()]
            lines += [
                f"{_help_line(f'task.{n}', f)} [task.name={task}]"
                for task, options in TASK_OPTIONS.items()
                for n, f in options.model_fields.items()
                if n not in TaskOptions.model_fields
            ]
        else:
            fields = field.annotation.model_fields.items()
            lines += [_help_line(f"{section}.{n}", f) for n, f in fields]
    return "\n".join(lines)


def _help_line(key: str, option: FieldInfo) -> str:
    accepted = f" ({limits(option)})" if limits(option) else ""
    return f"  {f'{key}={_default(option)}':<44} {option.description or ''}{accepted}"


def _default(option: FieldInfo) -> str:
    """A default as YAML, except for the blanks in lists."""
    default = option.get_default(call_default_factory=True)
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return str(default)


def _checked(values: Mapping[str, Any]) -> Config:
    """The config of nested values.

    Raises:
        ConfigError: with all problems.
    """
    section = values.get("task")
    task = str(section.get("name", "flexible")) if isinstance(section, Mapping) else "flexible"
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


def _problem(error: Mapping[str, Any], kind: type[Config]) -> list[str]:
    """Lines about an error of pydantic: value, what is accepted, the closest key."""
    names = [part for part in error["loc"] if isinstance(part, str)]
    key = ".".join(names)
    if error["type"] == "extra_forbidden":
        inside = error["input"] if isinstance(error["input"], dict) else ()
        keys = [f"{key}.{name}" for name in inside] or [key]
        return [f"unknown option {one}; {_hint(one, kind)}" for one in keys]
    if "error" in error.get("ctx", {}):  # of a validator of ours
        return [*str(error["ctx"]["error"]).splitlines()]
    section = kind.model_fields[names[0]].annotation
    option = section.model_fields[names[1]] if len(names) > 1 else kind.model_fields[names[0]]
    accepted = f" ({limits(option)})" if limits(option) else ""
    message = error["msg"][0].lower() + error["msg"][1:]
    example = f"{key}={_default(option)}".replace(" ", "") if len(names) > 1 else f"{key}.KEY=VALUE"
    return [f"{key} is {reprlib.repr(error['input'])[:100]}; {message}{accepted}, e.g. {example}"]


def _hint(key: str, kind: type[Config]) -> str:
    keys = [
        f"{section}.{option}"
        for section in _sections()
        for option in kind.model_fields[section].annotation.model_fields
    ]
    last = key.rpartition(".")[2]
    same = [known for known in keys if known.rpartition(".")[2] == last]
    close = same or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "ffn train --help lists all"


def _sections() -> list[str]:
    return [name for name in Config.model_fields if name != "imports"]


def _leaves(values: Mapping[str, Any]) -> dict[str, Any]:
    """Value of every option by its key."""
    found = {}
    for section, options in values.items():
        if isinstance(options, Mapping):
            found |= {f"{section}.{key}": value for key, value in options.items()}
        else:
            found[section] = options
    return found


class _TextLoader(yaml.BaseLoader):
    """Reads mappings, lists and texts; a key may not be given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise ConstructorError(None, None, f"{twice[0]} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _TextLoader)
    except (yaml.YAMLError, RecursionError) as error:
        cause = " ".join(str(error).split())
        raise ConfigError(f"{source} is not valid YAML: {cause}") from error


def _read_file(path: Path) -> dict[str, Any]:
    """Mappings, lists and texts of a YAML file, by section."""
    if not path.is_file():
        raise ConfigError(f"no config file {path}; ffn configs lists the ones that ship")
    try:
        loaded = _read_yaml(path.read_text(encoding="utf-8-sig"), str(path)) or {}
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}; save the file as UTF-8") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} holds no options; expected YAML with keys such as train.epochs")
    for section, options in loaded.items():
        if not isinstance(options or {}, dict) and section in _sections():
            raise ConfigError(f"{path}: {section} is {options!r}; expected a section of options")
    return {
        key: {} if value == "" and key in _sections() else value for key, value in loaded.items()
    }


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


def _import(values: Mapping[str, Any]) -> None:
    names = values.get("imports") or []
    try:
        import_extensions([names] if isinstance(names, str) else names)
    except ExtensionError as error:
        raise ConfigError(str(error)) from error
