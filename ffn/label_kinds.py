"""The kinds of labels by their names in ``data.labels``; your own package registers more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ffn.labels import LabelKind, MultiLabel, SingleLabel
from ffn.registry import Registry
from ffn.texts import Characters, Words

# Makes a kind from the class names; other kinds than classes have the methods of `Characters`.
LABEL_KINDS: Registry[Any] = Registry("kind of labels")
LABEL_KINDS |= {"single": lambda classes: SingleLabel, "multi": lambda classes: MultiLabel}
LABEL_KINDS |= {"characters": Characters, "words": Words}
register_labels = LABEL_KINDS.register


def find_labels(name: str, classes: Sequence[str] = ()) -> LabelKind:
    """The kind of labels of a name, for these classes; ValueError if there is none."""
    try:
        return LABEL_KINDS[name](tuple(classes))
    except KeyError as error:
        raise ValueError(f"data.labels: {error.args[0]}") from None
