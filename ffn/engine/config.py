"""Load a config: defaults, a YAML file and ``key=value`` overrides, checked before use.

A file names only what differs from the defaults in ``options.py``. All problems of a config are
reported together: unknown options, wrong types, values out of range, contradictions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ffn.engine.config_checks import find_problems
from ffn.engine.options import Config
from ffn.engine.tasks import TASKS, TaskOptions
from ffn.registry import ExtensionError, import_extensions

# Options of version 0.1 and their names today.
RENAMED = {
    "data.erasing": "data.random_erasing",
    "data.reader": "data.decoder",
    "optim.base_batch": "optim.base_batch_size",
    "train.accumulate": "train.grad_accum_steps",
    "train.clip_norm": "train.clip_grad_norm",
    "train.freeze_norms": "train.freeze_bn",
    "train.precise_norms": "train.precise_bn",
    "train.recompute": "train.activation_checkpointing",
    "train.repeats": "train.repeated_aug",
    "train.sync_norms": "train.sync_bn",
}

# Names of options in other projects, without their section, for hints.
SYNONYMS = {
    "accum_iter": "train.grad_accum_steps",
    "base_lr": "optim.lr",
    "drop_rate": "model.dropout",
    "gradient_accumulation_steps": "train.grad_accum_steps",
    "learning_rate": "optim.lr",
    "max_epochs": "train.epochs",
    "max_grad_norm": "train.clip_grad_norm",
    "min_lr": "optim.final_lr",
    "num_epochs": "train.epochs",
    "num_segments": "task.frames",
    "num_workers": "data.workers",
    "optimizer": "optim.name",
    "output_dir": "log.output",
    "scheduler": "optim.schedule",
}

# Options that may change when a run is resumed: they do not change what it computes.
RESUMABLE = (
    "imports",
    "log",
    "data.root",
    "data.store",
    "data.workers",
    "data.timeout",
    "data.decoder",
    "data.cache_gib",
    "train.grad_accum_steps",
    "train.views",
    "train.activation_checkpointing",
    "train.compile",
    "train.deterministic",
    "train.save_steps",
    "train.keep_checkpoints",
    "train.max_bad_steps",
)


class ConfigError(ValueError):
    """A config that cannot be used; the message lists each problem and its remedy."""


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, a YAML file and ``key=value`` overrides into one checked config.

    The packages in ``imports`` are imported first, so that their tasks and models are known.

    Raises:
        ConfigError: the file is missing or invalid, a package cannot be imported, or options are
            unknown, of a wrong type, out of range or contradictory. The message lists all problems.
    """
    problems: list[str] = []
    sources = {} if path is None else {str(path): _read_file(Path(path))}
    sources["command line"] = _read_overrides(overrides, problems)
    given = {key: value for values in sources.values() for key, value in values.items()}
    _import(given)

    schema = _schema(given.get("task.name"), problems)
    wrong = set() if given.get("task.name") in (None, *TASKS) else {"task.name"}
    for source, values in sources.items():
        for key, value in values.items():
            done = key in wrong or (key == "task.name" and given[key] is not None)  # in the schema
            problem = None if done else _set(schema, key, value)
            if problem:
                problems.append(f"{source}: {problem}")
                wrong.add(key)
    config = OmegaConf.to_object(schema)
    problems += find_problems(config, wrong)
    if problems:
        raise ConfigError(_listed(problems))
    return config


def import_packages(path: str | Path | None, overrides: Sequence[str]) -> None:
    """Import the packages that a config file or overrides name in ``imports``.

    Raises:
        ConfigError: the file is missing or invalid, or a package cannot be imported.
    """
    given: dict[str, Any] = {}
    if path is not None and "=" not in str(path):
        given |= _read_file(Path(path))
    given |= _read_overrides([text for text in (str(path), *overrides) if "=" in text], [])
    _import(given)


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """Restore a config that :func:`config_to_dict` returned, in this version or in version 0.1.

    Its ``imports`` are not imported: it may come from a file of someone else.

    Raises:
        ConfigError: it has options that this version does not have, or its task is not registered.
    """
    leaves = {RENAMED.get(key, key): value for key, value in _leaves(values)}
    problems: list[str] = []
    schema = _schema(leaves.get("task.name"), problems)
    if leaves.get("task.name") == "plain":  # version 0.1 wrote the options of all tasks
        leaves = {
            k: v for k, v in leaves.items() if not k.startswith("task.") or k in _keys(schema)
        }
    problems += filter(None, (_set(schema, key, value) for key, value in leaves.items()))
    if problems:
        raise ConfigError(_listed(problems))
    return OmegaConf.to_object(schema)


def config_to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dicts of plain values, for YAML and checkpoints."""
    return OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)


def changed_options(before: Mapping[str, Any], now: Config) -> list[str]:
    """Options, with both values, that keep a run from being resumed; see `RESUMABLE`.

    Args:
        before: the config of the run, as :func:`config_to_dict` returned it.
        now: the config given.
    """
    old = dict(_leaves(config_to_dict(config_from_dict(before))))
    new = dict(_leaves(config_to_dict(now)))
    return [
        f"{key} {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(RESUMABLE)
    ]


def option_help() -> str:
    """One line per option: key, default, meaning, choices; those of each task under its name."""
    lines: list[str] = []
    for key, option in _options(Config):
        lines += _task_help() if key == "task" else [_help_line(key, option)]
    return "\n".join(lines)


def _task_help() -> list[str]:
    common = {field.name for field in fields(TaskOptions)}
    lines = [_help_line(f"task.{field.name}", field) for field in fields(TaskOptions)]
    lines[0] += f" ({', '.join(sorted(TASKS))})"
    for name, task in TASKS.items():
        own = [field for field in fields(task.Options) if field.name not in common]
        lines += [f"{_help_line(f'task.{f.name}', f)} [task.name={name}]" for f in own]
    return lines


def _help_line(key: str, option: Field) -> str:
    default = option.default if option.default is not MISSING else option.default_factory()
    choices = f" ({'|'.join(e.value for e in type(default))})" if isinstance(default, Enum) else ""
    shown = default.value if isinstance(default, Enum) else default
    if shown is None or isinstance(shown, bool):
        shown = {None: "null", True: "true", False: "false"}[shown]
    return f"  {f'{key}={shown}':<44} {option.metadata.get('help', '')}{choices}"


def _schema(task: Any, problems: list[str]) -> DictConfig:
    """All options with their defaults; the section ``task`` is that of the named task."""
    schema = OmegaConf.structured(Config)
    if task is None:
        return schema
    if task not in TASKS:
        close = difflib.get_close_matches(str(task), TASKS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"registered are {', '.join(TASKS)}."
        problems.append(
            f"task.name: no task {task!r}; {hint} A custom task needs imports=[PACKAGE]"
        )
        return schema
    try:
        schema.task = OmegaConf.structured(TASKS[task].Options)
    except OmegaConfBaseException as error:
        problems.append(
            f"task.name: option {error.full_key} of task {task} has a type that a config cannot "
            f"hold ({_first_line(error)}); use numbers, strings, enums, lists or dicts of them"
        )
        return schema
    schema.task.name = task
    return schema


def _set(schema: DictConfig, key: str, value: Any) -> str | None:
    """Set one option; return the problem if it is unknown or has another type."""
    if key in RENAMED:
        return f"option {key} is now {RENAMED[key]}"
    if value == {} and key in schema and isinstance(schema[key], DictConfig):
        return None  # a section without options
    if key not in _keys(schema):
        return f"unknown option {key}; {_hint(key, schema)}"
    if key == "imports":
        value = _as_list(value)
    default = OmegaConf.select(schema, key)
    if value == "???":  # "missing" in OmegaConf
        return f"option {key} has no value"
    try:
        OmegaConf.update(schema, key, value)
        OmegaConf.select(schema, key)  # resolves interpolations
    except OmegaConfBaseException as error:
        OmegaConf.update(schema, key, default)
        if value is None:
            shown = getattr(default, "value", default)
            return f"option {key} is null; give a value, e.g. {key}={shown}"
        return f"option {error.full_key or key}: {_first_line(error)}"
    return None


def _hint(key: str, schema: DictConfig) -> str:
    valid = _keys(schema)
    last = key.rsplit(".", 1)[-1]
    same = [option for option in valid if option.rsplit(".", 1)[-1] == last]
    same = same or [option for option in [SYNONYMS.get(last)] if option in valid]
    close = same or difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    if key.startswith("task.") and not same:
        own = ", ".join(option for option in valid if option.startswith("task."))
        return f"task {schema.task.name} has {own}"
    return f"did you mean {close[0]}?" if close else "tools/train.py --help lists all options"


def _keys(schema: DictConfig) -> list[str]:
    """The keys of all options, e.g. ``train.epochs``."""
    return [
        f"{section}.{key}" if isinstance(options, DictConfig) else str(section)
        for section, options in schema.items()
        for key in (options if isinstance(options, DictConfig) else [section])
    ]


def _options(cls: type, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Key and field of every option below a dataclass; the section ``task`` as one field."""
    for option in fields(cls):
        factory = option.default_factory
        if option.name != "task" and isinstance(factory, type) and is_dataclass(factory):
            yield from _options(factory, f"{prefix}{option.name}.")
        else:
            yield f"{prefix}{option.name}", option


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Key and value of every option; the value may be a mapping."""
    sections = {field.name for field in fields(Config)}
    for section, options in values.items():
        if isinstance(options, Mapping) and (options or section in sections):
            yield from ((f"{section}.{key}", value) for key, value in options.items())
        else:
            yield str(section), options


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"no config file {path}; see configs/ for the ones that ship")
    try:
        loaded = OmegaConf.load(path)
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}, option {error.full_key}: {_first_line(error)}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} holds no options; expected YAML with keys such as train.epochs")
    return dict(_leaves(OmegaConf.to_container(loaded)))


def _read_overrides(overrides: Sequence[str], problems: list[str]) -> dict[str, Any]:
    valid = [text for text in overrides if "=" in text]
    problems += [
        f"{text!r} is not key=value (e.g. train.epochs=10)"
        for text in overrides
        if text not in valid
    ]
    parsed = OmegaConf.create()
    for text in valid:
        try:
            parsed.merge_with_dotlist([text])
        except (YAMLError, OmegaConfBaseException) as error:
            problems.append(f"command line: {text!r} is not an option: {_first_line(error)}")
    return dict(_leaves(OmegaConf.to_container(parsed)))


def _import(values: Mapping[str, Any]) -> None:
    names = _as_list(values.get("imports"))
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"imports is {values['imports']!r}; give names, as imports=[my_package]")
    try:
        import_extensions(names)
    except ExtensionError as error:
        raise ConfigError(str(error)) from error


def _as_list(value: Any) -> list[Any]:
    """A list from YAML; a single value becomes a list of it."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _listed(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems:" + "".join(f"\n  {problem}" for problem in problems)
