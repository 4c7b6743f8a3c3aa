"""Registries of models by name, and of families that build a model from any timm network.

Your own package adds a model with the same decorators::

    from ffn.backbones import register

    @register
    def my_net(*, num_classes: int = 400, dropout: float = 0.0) -> nn.Module: ...

The factory maps its keyword arguments to a network: clip (B, C, T, H, W) of any T to logits (B, K).
"""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import timm
from torch import nn

from ffn.registry import Registry

Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

_models: Registry[Callable[..., nn.Module]] = Registry("model")
_families: Registry[Callable[..., nn.Module]] = Registry("model family")
_heads: Registry[Callable[..., nn.Module]] = Registry("head")


def register(factory: Factory) -> Factory:
    """Register a model factory (a function or a class) under its own name; a decorator.

    Raises:
        ValueError: the name belongs to another factory.
    """
    return _models.register(factory.__name__)(factory)


def register_family(name: str) -> Callable[[Factory], Factory]:
    """Register ``factory(timm_name, **kwargs)``, which builds ``name.<timm name>``; a decorator."""
    return _families.register(name)


def register_head(name: str) -> Callable[[Factory], Factory]:
    """Register ``factory(backbone, num_classes, **options)``, which adds a head; a decorator."""
    return _heads.register(name)


def model_names(pattern: str = "*") -> list[str]:
    """Names of the registered models that match a glob pattern, sorted."""
    return sorted(fnmatch.filter(_models, pattern))


def model_summary(name: str) -> str:
    """The first line of the docstring of a registered model; empty if it has none."""
    return (inspect.getdoc(_models[name]) or "").partition("\n")[0]


def is_registered(name: str) -> bool:
    """Whether :func:`build` accepts the model, or the family of a ``family.<timm name>``."""
    family, _, timm_name = name.partition(".")
    return name in _models or (bool(timm_name) and family in _families)


def build(
    name: str,
    *,
    num_classes: int = 400,
    pretrained: bool = False,
    head: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Build a model by its registered name, or by ``family.<timm name>``.

    Args:
        name: see :func:`model_names`; families are tsm and tea.
        num_classes: K, at least 1.
        pretrained: start from image weights; the classifier starts with new weights.
        head: what replaces the classifier: its registered ``name``, and its options.
        kwargs: further arguments of the model's factory.

    Raises:
        ValueError: no model of that name (the message lists the closest names), or an argument that
            its factory does not take, as ``pretrained`` without image weights.
    """
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; expected at least 1")
    factory = _find(name)
    if pretrained:
        kwargs["pretrained"] = True
    try:
        model = factory(num_classes=num_classes, **kwargs)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[1] not in {*kwargs, "num_classes"}:
            raise  # an error inside the factory
        why = "it has no image weights" if unknown[1] == "pretrained" else "remove it"
        raise ValueError(f"{name} takes no argument {unknown[1]}; {why}") from error
    options = dict(head or {})
    return _heads[options.pop("name")](model, num_classes, **options) if head else model


def _find(name: str) -> Callable[..., nn.Module]:
    family, _, timm_name = name.partition(".")
    if timm_name and family in _families:
        if not timm.is_model(timm_name):
            close = difflib.get_close_matches(timm_name.partition(".")[0], timm.list_models(), n=3)
            hint = f"; did you mean {', '.join(f'{family}.{c}' for c in close)}?" if close else ""
            raise ValueError(f'no model "{name}": timm has no "{timm_name}"{hint}')
        return partial(_families[family], timm_name)
    try:
        return _models[name]
    except KeyError as error:
        raise ValueError(
            f"{error.args[0]}. timm CNNs of the blocks in ffn.backbones.tsm are "
            f"{', '.join(f'{f}.<timm name>' for f in _families)}."
        ) from None
