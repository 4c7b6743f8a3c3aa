"""A config file, checked: it names only what differs from the defaults in ``options.py``.

``load_config`` merges defaults, file and ``key=value`` overrides, and refuses unknown keys, wrong
types and contradictions before anything is built.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from ffn.engine.config_checks import problems
from ffn.engine.options import Config


class ConfigError(ValueError):
    """A config that cannot be used; the message says what to change."""


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, a yaml file and ``key=value`` overrides into one checked config.

    Raises:
        ConfigError: no such file, an unknown key (the closest valid one is named), a value of the
            wrong type, or options that contradict each other.
    """
    config = OmegaConf.structured(Config)
    if path is not None:
        if not Path(path).is_file():
            raise ConfigError(f"no config file {path}; see configs/ for the ones that ship")
        try:
            loaded = OmegaConf.load(path)
        except YAMLError as error:
            raise ConfigError(f"{path} is no yaml: {error}") from error
        if not isinstance(loaded, DictConfig):
            raise ConfigError(f"{path} holds no options; expected yaml with keys as train.epochs")
        config = _merge(config, loaded, str(path))
    wrong = [text for text in overrides if "=" not in text]
    if wrong:
        raise ConfigError(f"override {wrong[0]!r} is no key=value, as train.epochs=10")
    config = _merge(config, OmegaConf.from_dotlist(list(overrides)), "command line")
    result = OmegaConf.to_object(config)
    for problem in problems(result):
        raise ConfigError(problem)
    return result


def config_from_dict(values: dict[str, Any]) -> Config:
    """Restore a config that :func:`config_to_dict` flattened into plain values."""
    return OmegaConf.to_object(
        _merge(OmegaConf.structured(Config), OmegaConf.create(values), "dict")
    )


def config_to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dicts of plain values, for yaml and checkpoints."""
    container = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return container


def option_help() -> str:
    """One line per option: key, type or choices, default, meaning."""
    lines = []
    for key, option in _options(Config):
        default = option.default_factory() if option.default is _MISSING else option.default
        shown = default.value if isinstance(default, Enum) else default
        choices = (
            f" ({'|'.join(e.value for e in type(default))})" if isinstance(default, Enum) else ""
        )
        shown = {None: "null", True: "true", False: "false"}[shown] if _is_word(shown) else shown
        lines.append(f"  {f'{key}={shown}':<44} {option.metadata['help']}{choices}")
    return "\n".join(lines)


_MISSING = fields(Config)[0].default


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _options(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for option in fields(cls):
        factory = option.default_factory
        if isinstance(factory, type) and is_dataclass(factory):
            yield from _options(factory, f"{prefix}{option.name}.")
        else:
            yield f"{prefix}{option.name}", option


def _merge(config: DictConfig, values: DictConfig, source: str) -> DictConfig:
    valid = [key for key, _ in _options(Config)]
    for key in _leaves(OmegaConf.to_container(values)):
        if key not in valid:
            close = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
            same = [k for k in valid if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
            hint = same[0] if same else close[0] if close else None
            advice = f"did you mean {hint}?" if hint else "tools/train.py --help lists all."
            raise ConfigError(f"{source}: unknown option {key}; {advice}")
    try:
        return OmegaConf.merge(config, values)
    except (ConfigKeyError, OmegaConfBaseException) as error:
        key = getattr(error, "full_key", "") or "?"
        cause = str(error).splitlines()[0]
        raise ConfigError(f"{source}: option {key}: {cause}") from error


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
