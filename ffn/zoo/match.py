"""Does a state dict belong to a network? What matches is counted, what does not is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ffn.zoo.records import WeightsError

ENOUGH = 0.95  # below this share of matching parameters it is another network


@dataclass(frozen=True)
class Match:
    """A state dict held against a network's.

    Attributes:
        state: the entries that match by name and shape.
        total: entries of the network, classifier of another size left out.
        parameters: numbers in those entries.
        matched_parameters: numbers in ``state``.
        missing: the network's entries that the state dict lacks.
        unexpected: the state dict's entries that the network lacks.
        reshaped: entries of another shape, with both shapes.
        head: entries of a classifier with another number of classes.
        classes: the number of classes, theirs and ours; None if equal.
    """

    state: dict[str, Tensor]
    total: int
    parameters: int
    matched_parameters: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: tuple[str, ...]
    head: tuple[str, ...]
    classes: tuple[int, int] | None

    @property
    def share(self) -> float:
        """Matched parameters (numbers, not entries) over those of the network, 0 to 1."""
        return self.matched_parameters / max(1, self.parameters)

    def require(
        self,
        source: str,
        *,
        new_head: bool = False,
        enough: float | None = None,
        remedy: str = "",
    ) -> Match:
        """Refuse anything less than a full match, or than a share of the parameters.

        Counters of batches, which old versions of torch did not save, may always be missing.

        Args:
            source: what to call the state dict in the message.
            new_head: a classifier of another size is left out, not refused.
            enough: the share of the network's parameters, 0 to 1, that must match; None for
                everything, on both sides.
            remedy: how to accept a small difference, for the message.

        Returns:
            This match.

        Raises:
            WeightsError: an entry has no partner, or too few have one.
        """
        missing = [k for k in self.missing if not k.endswith("num_batches_tracked")]
        faults = [f"{k} is missing" for k in missing]
        faults += [f"{k} is unknown to the model" for k in self.unexpected]
        faults += list(self.reshaped)
        other_head = self.classes is not None and not new_head
        if other_head:
            faults.append(f"its classifier has {self.classes[0]} classes, not {self.classes[1]}")
        suffices = enough is not None and self.share >= enough and not other_head
        if not faults or suffices:
            return self
        text = f"{source} does not fit the model: {len(self.state)} of {self.total} entries match"
        text += f" ({self.share:.1%} of the parameters). " + "; ".join(faults[:4])
        if len(faults) > 4:
            text += f"; and {len(faults) - 4} more"
        few = min(self.share, len(self.state) / max(1, self.total)) < ENOUGH
        hint = "Probably it belongs to another model." if few else remedy
        raise WeightsError(f"{text}. {hint}".strip())

    def __str__(self) -> str:
        matched = f"{len(self.state)} of {self.total} entries"
        lines = [f"matched: {matched}, {self.share:.1%} of the parameters"]
        lines += [f"missing: {key}" for key in self.missing]
        lines += [f"unmatched: {key}" for key in self.unexpected]
        lines += [f"unmatched: {text}" for text in self.reshaped]
        if self.classes:
            lines.append(
                f"classifier: {self.classes[0]} classes there, {self.classes[1]} here; starts anew"
            )
        return "\n".join(lines)


def match_state(state: Mapping[str, Tensor], network: Mapping[str, Tensor]) -> Match:
    """Hold a state dict against a network's own.

    A classifier of another size is recognised by its shapes: entries that differ in their first
    dimension only, all of them from the same number of classes to the same other one.
    """
    shared = [key for key in network if key in state]
    same = [key for key in shared if state[key].shape == network[key].shape]
    other = [key for key in shared if state[key].shape != network[key].shape]
    sizes = {
        (*state[key].shape[:1], *network[key].shape[:1])
        for key in other
        if state[key].shape[1:] == network[key].shape[1:]
    }
    is_head = len(sizes) == 1 and all(state[k].shape[1:] == network[k].shape[1:] for k in other)
    is_head = is_head and len(other) <= 2  # weight and bias
    head = tuple(other) if is_head else ()
    return Match(
        state={key: state[key] for key in same},
        total=len(network) - len(head),
        parameters=sum(tensor.numel() for key, tensor in network.items() if key not in head),
        matched_parameters=sum(network[key].numel() for key in same),
        missing=tuple(key for key in network if key not in state),
        unexpected=tuple(key for key in state if key not in network),
        reshaped=tuple(
            f"{key} is {tuple(state[key].shape)}, the model's {tuple(network[key].shape)}"
            for key in other
            if key not in head
        ),
        head=head,
        classes=sizes.pop() if head else None,
    )
