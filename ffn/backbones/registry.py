"""One dict of named models, and one of families that take any timm network by name."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable
from typing import Any

from torch import nn

Factory = Callable[..., nn.Module]

_models: dict[str, Factory] = {}
_families: dict[str, Factory] = {}
_with_image_weights: set[str] = set()


def register(factory: Factory) -> Factory:
    """Register a model factory under its function's name; use as a decorator."""
    _models[factory.__name__] = factory
    return factory


def register_pretrained(factory: Factory) -> Factory:
    """The same for a factory that takes ``pretrained``, for image weights of timm."""
    _with_image_weights.add(factory.__name__)
    return register(factory)


def register_family(name: str) -> Callable[[Factory], Factory]:
    """Register ``factory(timm_name, **kwargs)``: ``name.<timm name>`` then builds a model."""

    def decorator(factory: Factory) -> Factory:
        _families[name] = factory
        return factory

    return decorator


def model_names(pattern: str = "*") -> list[str]:
    """Names of the registered models that match a glob pattern, sorted."""
    return sorted(fnmatch.filter(_models, pattern))


def families() -> list[str]:
    """Names of the families, as "tsm" in ``tsm.mobilenetv3_large_100``."""
    return sorted(_families)


def build(name: str, *, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Build a model by its registered name, or ``family.<timm name>``.

    Raises:
        ValueError: no such name, the message holds the closest ones; or no image weights of it.
    """
    if pretrained and name in _models and name not in _with_image_weights:
        raise ValueError(
            f"{name} has no image weights; pass pretrained=False, and start from weights of the "
            "zoo or a converted checkpoint (model.weights in a config)"
        )
    if pretrained:
        kwargs["pretrained"] = True
    if name in _models:
        return _models[name](**kwargs)
    family, _, inner = name.partition(".")
    if inner and family in _families:
        return _families[family](inner, **kwargs)
    close = difflib.get_close_matches(name, _models, n=3) or model_names()
    raise ValueError(
        f'no model "{name}"; did you mean {", ".join(close)}? Any timm CNN with residual blocks '
        f"runs as {', '.join(f'{f}.<timm name>' for f in families())}."
    )
