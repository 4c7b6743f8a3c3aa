"""Load a config: defaults, a YAML file and ``key=value`` overrides, checked before use.

A file names only what differs from the defaults in ``options.py``. All problems of a config are
reported together: unknown options, wrong types, values out of range, contradictions.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from ffn.engine.config_checks import find_problems, named_options
from ffn.engine.config_help import default_text
from ffn.engine.option_values import convert, expected, key_lines, read_override, read_yaml, shown
from ffn.engine.options import Config
from ffn.engine.tasks import TASKS
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

# Options that may change when a run is resumed. Except for `train.epochs`, which may grow, and the
# videos that are skipped, they do not change what it computes.
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
    "data.allow_changes",
    "train.grad_accum_steps",
    "train.views",
    "train.activation_checkpointing",
    "train.compile",
    "train.deterministic",
    "train.patience",
    "train.save_steps",
    "train.keep_checkpoints",
    "train.max_bad_steps",
)

# Options that change no result, in whatever run: where its files are, how they are loaded and kept.
# Not among them: data.decoder, as decoders round pixels in different ways, and train.views,
# train.activation_checkpointing and train.compile, which change the order of sums.
WITHOUT_EFFECT = (
    "log",
    "data.root",
    "data.store",
    "data.workers",
    "data.timeout",
    "data.cache_gib",
    "train.save_steps",
    "train.keep_checkpoints",
)


COMMAND = "command line"  # where an override comes from

# Options whose texts have braces, which YAML would take for a mapping on the command line.
WITH_BRACES = ("data.frame_pattern",)


class ConfigError(ValueError):
    """A config that cannot be used.

    The message has at most three lines: of more than three problems, it has the place only.

    Attributes:
        problems: each problem with its place and remedy.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(_listed(problems))
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
    problems: list[str] = []
    leaves = [] if path is None else _read_file(Path(path))
    changes = [(COMMAND, key, value) for key, value in _read_overrides(overrides, problems)]
    given = {key: value for _, key, value in leaves + changes}
    origin = {key: source for source, key, _ in leaves + changes}
    _import(given)
    leaves = _without_replaced_task(leaves, changes) + changes

    config = _defaults(given.get("task.name"), problems)
    wrong = {"task.name"} if given.get("task.name") not in (None, config.task.name) else set()
    for source, key, value in leaves:
        done = key in wrong or (key == "task.name" and given[key] is not None)  # in _defaults
        problem = None if done else _set(config, key, value)
        if problem:
            problems.append(f"{source}: {problem}")
            wrong.add(key)
    problems += find_problems(config, wrong)
    if problems:
        raise ConfigError(*(_with_source(problem, path, origin) for problem in problems))
    return config


def import_packages(path: str | Path | None, overrides: Sequence[str]) -> None:
    """Import the packages that a config file or overrides name in ``imports``.

    Raises:
        ConfigError: the file is missing or invalid, or a package cannot be imported.
    """
    given: list[tuple[str, Any]] = []
    if path is not None and "=" not in str(path):
        given += [(key, value) for _, key, value in _read_file(Path(path))]
    given += _read_overrides([text for text in (str(path), *overrides) if "=" in text], [])
    _import(dict(given))


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """Restore a config that :func:`config_to_dict` returned, in this version or in version 0.1.

    Its ``imports`` are not imported: it may come from a file of someone else.

    Raises:
        ConfigError: it has options that this version does not have, or its task is not registered.
    """
    leaves = {RENAMED.get(key, key): value for key, value in _leaves(values)}
    problems: list[str] = []
    config = _defaults(leaves.get("task.name"), problems)
    if leaves.get("task.name") == "plain":  # version 0.1 wrote the options of all tasks
        leaves = {
            k: v for k, v in leaves.items() if not k.startswith("task.") or k in option_keys(config)
        }
    problems += filter(None, (_set(config, key, value) for key, value in leaves.items()))
    if problems:
        raise ConfigError(*problems)
    return config


def config_to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dicts of plain values, for YAML and checkpoints."""
    return _plain(config)


def option_keys(config: Config | None = None) -> list[str]:
    """The keys of all options, e.g. ``train.epochs``; without a config those of the default one."""
    config = config or Config()
    sections = {section.name: getattr(config, section.name) for section in fields(config)}
    return [
        f"{name}.{option.name}" if is_dataclass(options) else name
        for name, options in sections.items()
        for option in (fields(options) if is_dataclass(options) else [None])
    ]


def changed_options(before: Mapping[str, Any], now: Config) -> list[str]:
    """Options, with both values, that keep a run from being resumed; see `RESUMABLE`.

    Args:
        before: the config of the run, as :func:`config_to_dict` returned it.
        now: the config given.
    """
    longer = config_from_dict(before).train.epochs < now.train.epochs
    return different_options(before, now, (*RESUMABLE, *(["train.epochs"] if longer else [])))


def different_options(
    before: Mapping[str, Any], now: Config, ignored: tuple[str, ...] = WITHOUT_EFFECT
) -> list[str]:
    """Options, with both values, that differ between two configs.

    Args:
        before: the one config, as :func:`config_to_dict` returned it.
        now: the other one.
        ignored: options, or sections, that may differ; by default those that change no result.
    """
    old = dict(_leaves(config_to_dict(config_from_dict(before))))
    new = dict(_leaves(config_to_dict(now)))
    return [
        f"{key} {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(ignored)
    ]


_kinds = functools.cache(get_type_hints)  # it evaluates the annotations of a class in every call


def _defaults(task: Any, problems: list[str]) -> Config:
    """The default config; the section ``task`` is that of the named task."""
    config = Config()
    if task is None:
        return config
    if task not in tuple(TASKS):  # a tuple: a list has no hash
        close = difflib.get_close_matches(str(task), TASKS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"registered are {', '.join(TASKS)}."
        problems.append(
            f"task.name: no task {shown(task)}; {hint} A custom task needs imports=[PACKAGE]"
        )
        return config
    for key, kind in _kinds(TASKS[task].Options).items():
        if expected(kind) is None:
            problems.append(
                f"task.name: option {key} of task {task} has a type that a config cannot "
                f"hold ({kind}); use numbers, strings, enums, lists or dicts of them"
            )
            return config
    config.task = TASKS[task].Options()
    config.task.name = task
    return config


def _without_replaced_task(
    leaves: list[tuple[str, str, Any]], changes: list[tuple[str, str, Any]]
) -> list[tuple[str, str, Any]]:
    """The options of a file, without those of its task if the command line names another."""
    new = {key: value for _, key, value in changes}
    before = {key: value for _, key, value in leaves}.get("task.name", Config().task.name)
    task = new.get("task.name", before)
    if task == before or not {str(before), str(task)} <= {*TASKS}:
        return leaves
    own, others = ({option.name for option in fields(TASKS[t].Options)} for t in (before, task))
    left_out = {*(own - others), *(["ranges"] if "task.frames" in new else [])}
    return [leaf for leaf in leaves if leaf[1] not in {f"task.{name}" for name in left_out}]


def _set(config: Config, key: str, value: Any) -> str | None:
    """Set one option; return the problem if it is unknown or has another type."""
    if key in RENAMED:
        return f"option {key} is now {RENAMED[key]}"
    section, _, name = key.rpartition(".")
    if value == {} and is_dataclass(vars(config).get(key)):
        return None  # a section without options
    if key not in option_keys(config):
        return f"unknown option {_shown_key(key)}; {_hint(key, config)}"
    owner = getattr(config, section) if section else config
    kind, default = _kinds(type(owner))[name], getattr(owner, name)
    if key == "imports" and value is None:
        value = []
    try:
        converted = convert(value, kind)
    except ValueError:
        example = f"e.g. {key}={default_text(default).replace(' ', '')}"
        if value is None:
            return f"option {key} is null; give a value, {example}"
        if "${" in str(value):
            return f"option {key} is {shown(value)}; variables are not replaced, write the value"
        return f"option {key} is {shown(value)}; expected {expected(kind)}, {example}"
    if isinstance(default, dict):
        converted = {**default, **converted}
    setattr(owner, name, converted)
    return None


def _with_source(problem: str, path: str | Path | None, origin: Mapping[str, str]) -> str:
    """A problem after the file and the lines that give its options, unless it names its source."""
    if problem.startswith((f"{COMMAND}: ", f"{path}: ")):
        return problem
    found = {origin[key] for key in named_options([problem]) if key in origin} - {COMMAND}
    lines = sorted(int(source.rpartition(" ")[2]) for source in found)
    if not lines:
        return problem
    return f"{path}: line{'s' * (len(lines) > 1)} {' and '.join(map(str, lines))}: {problem}"


def _shown_key(key: str) -> str:
    return key if key.isprintable() and len(key) < 80 else shown(key)


def _plain(value: Any) -> Any:
    """A value of an option, or all options, as plain values."""
    if is_dataclass(value):
        return {option.name: _plain(getattr(value, option.name)) for option in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def _hint(key: str, config: Config) -> str:
    valid = option_keys(config)
    last = key.rsplit(".", 1)[-1]
    same = [option for option in valid if option.rsplit(".", 1)[-1] == last]
    same = same or [option for option in [SYNONYMS.get(last)] if option in valid]
    close = same or difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    if key.startswith("task.") and not same:
        own = [option for option in valid if option.startswith("task.")]
        close = difflib.get_close_matches(last, [one.removeprefix("task.") for one in own], n=1)
        question = f"did you mean task.{close[0]}? " if close else ""
        return f"{question}choose from those of task {config.task.name}: {', '.join(own)}"
    return f"did you mean {close[0]}?" if close else "ffn train --help lists all options"


def _leaves(values: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Key and value of every option; the value may be a mapping."""
    sections = {field.name for field in fields(Config)}
    for section, options in values.items():
        if isinstance(options, Mapping) and (options or section in sections):
            yield from ((f"{section}.{key}", value) for key, value in options.items())
            if not options:
                yield section, options
        else:
            yield str(section), options


def _read_file(path: Path) -> list[tuple[str, str, Any]]:
    """File and line, key, and value of every option of a YAML file."""
    if not path.is_file():
        raise ConfigError(f"no config file {path}; ffn configs lists the ones that ship")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
        loaded = read_yaml(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}: line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as "
            "UTF-8"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid YAML: {error}; check brackets, quotes and indentation"
        ) from error
    if loaded is not None and not isinstance(loaded, dict):
        raise ConfigError(
            f"{path}: line 1: the file holds no options; expected YAML with keys such as "
            "train.epochs"
        )
    lines = key_lines(text)
    sections = {key.partition(".")[0] for key in option_keys() if "." in key}
    given = {  # a section whose lines are all comments is null
        key: {} if value is None and key in sections else value
        for key, value in (loaded or {}).items()
    }
    return [
        (f"{path}: line {lines.get(key) or lines.get(key.partition('.')[0], 1)}", key, value)
        for key, value in _leaves(given)
    ]


def _read_overrides(overrides: Sequence[str], problems: list[str]) -> list[tuple[str, Any]]:
    """Key and value of every ``key=value``."""
    found: list[tuple[str, Any]] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            problems.append(f"{COMMAND}: {shown(text)} is not key=value (e.g. train.epochs=10)")
            continue
        try:
            parsed = read_override(value)
            if isinstance(parsed, dict) and key in WITH_BRACES:
                parsed = value
        except ValueError as error:
            if "{" in value and key in WITH_BRACES:  # {:05d}.jpg is no YAML
                found.append((key, value))
                continue
            problems.append(
                f"{COMMAND}: {shown(text)} is not an option: {error}; check brackets and quotes"
            )
            continue
        section, *names = key.split(".")
        for name in reversed(names[1:]):
            parsed = {name: parsed}
        found += [(f"{section}.{names[0]}", parsed)] if names else _leaves({section: parsed})
    return found


def _import(values: Mapping[str, Any]) -> None:
    try:
        names = convert(values.get("imports") or [], list[str])
    except ValueError:
        raise ConfigError(
            f"imports is {shown(values['imports'])}; give names, as imports=[my_package]"
        ) from None
    try:
        import_extensions(names)
    except ExtensionError as error:
        raise ConfigError(str(error)) from error


def _listed(problems: Sequence[str]) -> str:
    """All problems in at most three lines; of more than three, the third names the places."""
    if len(problems) > 3:
        places = [_place(problem) for problem in problems[2:]]
        more = [f"{len(places) - 20} others"] if len(places) > 20 else []
        further = f"and {len(places)} more problems: {', '.join([*places[:20], *more])}"
        problems = [*problems[:2], further]
    return "\n  ".join(problems)


def _place(problem: str) -> str:
    """The lines of a problem in a config file, or else its option."""
    found = re.search(r": (lines? [0-9]+(?: and [0-9]+)*)", problem)
    found = found or re.search(r"([a-z]+\.[a-z_]+)", problem)
    return found[1] if found else shown(problem)
