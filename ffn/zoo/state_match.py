"""Compare a state dict with a network's: count the entries that match, list those that do not."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from ffn.zoo.records import WeightsError

HEADS = ("net.fc", "head", "net.classifier", "net.head.fc")  # classifiers of our models
_POOLINGS = ("fc_norm.", "pooler.")  # what is trained with one


@dataclass(frozen=True)
class Match:
    """Result of the comparison of a state dict with a network's.

    Attributes:
        state: the entries that match by name and shape.
        total: number of the network's entries, without those of a new classifier.
        faults: the entries that do not match, each with the reason. ``num_batches_tracked``, which
            old versions of torch did not save, may be missing.
        classes: number of classes in the state dict (0: no classifier) and in the network, whose
            classifier is new; None if they are equal.
        note: how the frame counts of the weights were assigned to those of the network, if they
            differ.
    """

    state: dict[str, Tensor]
    total: int
    faults: tuple[str, ...]
    classes: tuple[int, int] | None
    note: str = ""

    def require(self, source: str, *, new_head: bool = False) -> Match:
        """Return this match; raise an error unless everything matches.

        Args:
            source: name of the state dict in the message.
            new_head: accept a classifier with another number of classes, or none.

        Raises:
            WeightsError: entries do not match.
        """
        faults = list(self.faults)
        if self.classes is not None and not new_head:
            faults.append(f"its classifier has {self.classes[0]} classes, not {self.classes[1]}")
        if faults:
            more = f"; and {len(faults) - 4} more" if len(faults) > 4 else ""
            raise WeightsError(
                f"{source} does not fit the model: {len(self.state)} of {self.total} entries "
                f"match. {'; '.join(faults[:4])}{more}"
            )
        return self

    def __str__(self) -> str:
        lines = [f"matched: {len(self.state)} of {self.total} entries"]
        if self.classes:
            theirs, ours = self.classes
            known = f"{theirs} classes in the weights, {ours} in the model"
            lines.append(f"classifier: {known if theirs else f'{ours} classes'}; newly initialized")
        return "\n".join([*lines, self.note] if self.note else lines)


def match_state(
    state: Mapping[str, Tensor], network: Mapping[str, Tensor], *, head: Collection[str] = ()
) -> Match:
    """Compare a state dict with a network's.

    A classifier of other classes is recognized by its shapes: only entries of one layer (or of its
    private copies) differ, only in their first dimension, and all by the same two sizes.

    Args:
        state: entries by name.
        network: the network's own entries.
        head: names of the network's classifier. If the state dict has none of them, they count as
            a classifier of other classes.
    """
    other = [key for key in network if key in state and state[key].shape != network[key].shape]
    if head and not any(key in state for key in head):
        new_head, classes = tuple(head), (0, len(network[next(iter(head))]))
    else:
        classes = _other_classes(state, network, other)
        new_head = tuple(other) if classes else ()
    expected = [key for key in network if key not in new_head]
    missing = [key for key in expected if key not in state]
    faults = [f"{key} is missing" for key in missing if not key.endswith("num_batches_tracked")]
    faults += [f"{key} is unknown to the model" for key in state if key not in network]
    faults += [
        f"{key} is {tuple(state[key].shape)}, the model's {tuple(network[key].shape)}"
        for key in other
        if key not in new_head
    ]
    same = {key: state[key] for key in expected if key in state and key not in other}
    return Match(same, len(expected), tuple(faults), classes)


def new_head(network: Collection[str]) -> list[str]:
    """Entries of a network that weights without a classifier lack, its own first."""
    head = [key for key in network if _layer(key) in HEADS]
    return head + [key for key in network if key.startswith(_POOLINGS)]


def _layer(key: str) -> str:
    """The layer of an entry, without the frame count of a private one: "fc" of "fc.16.weight"."""
    return re.sub(r"(\.\d+)?\.\w+$", "", key)


def _other_classes(
    state: Mapping[str, Tensor], network: Mapping[str, Tensor], other: list[str]
) -> tuple[int, int] | None:
    """Both numbers of classes if the entries of another shape are a classifier, else None."""
    layers = {_layer(key) for key in other}
    pairs = [(state[key].shape, network[key].shape) for key in other]
    sizes = {(theirs[:1], ours[:1]) for theirs, ours in pairs}
    differ_elsewhere = any(theirs[1:] != ours[1:] for theirs, ours in pairs)
    if len(layers) != 1 or len(sizes) != 1 or differ_elsewhere:
        return None
    ((theirs, ours),) = sizes
    return (theirs[0], ours[0]) if theirs and ours else None
