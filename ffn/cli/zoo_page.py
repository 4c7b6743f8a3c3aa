"""The page of the zoo: tables of weights and of models as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from ffn.zoo import WeightRecord

HEAD = """# Model zoo

Written by `ffn zoo table > model_zoo/README.md` from the records in `weights/`.

`ffn.load(NAME)` and `--weights NAME` accept every name below. Weights with a link are downloaded on
first use, checked and converted. Their hashes are not known in advance: the hash of the first
download is stored next to the file, and every later download must match it. Downloads from Google
Drive need `pip install 'frame-flexible[drive]'`.

## Weights

Top-1 accuracy in % at numbers of frames, and multiply-accumulates of one clip in billions (GMACs).
*Reported* accuracies are those of the authors; they were not measured here.

"""
FRAMES, SIDE, CLASSES = [4, 8, 16, 32, 64], 224, 174  # defaults of the table of models
MODELS = f"""
## Models

Parameters, and GMACs of one clip, with {CLASSES} classes at {SIDE} px; for SlowFast, frames are
those of the fast pathway. `flexible` is the increase in parameters with three trained counts.
`ffn zoo models PATTERN` prints the table for other models, also `tsm.<timm name>`, and sizes.

"""


def page() -> str:
    """The content of ``model_zoo/README.md``."""
    from ffn.zoo import list_models, list_weights

    weights = weights_table(list_weights(), with_cost=True)
    return HEAD + weights + MODELS + models_table(list_models())


def weights_table(names: Sequence[str], *, with_cost: bool = False) -> str:
    """A Markdown table of weights: what they know, top-1 per frame count, and the origin.

    The GMACs per frame count, ``with_cost``, take a second per network.
    """
    from ffn.zoo import find_record

    columns: dict[str, Callable[[WeightRecord], str]] = {
        "weights": lambda record: f"`{record.name}`",
        "knows": lambda record: record.knows,
        "frames: top-1 %": _accuracies,
        **({"GMACs": _gmacs} if with_cost else {}),
        "origin": lambda record: ", ".join(filter(None, (record.origin, record.protocol))),
        "published": _place,
    }
    records = map(find_record, names)
    lines = [columns, ["---"] * len(columns), *([f(r) for f in columns.values()] for r in records)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def models_table(
    names: Sequence[str],
    frames: Sequence[int] = FRAMES,
    side: int = SIDE,
    num_classes: int = CLASSES,
) -> str:
    """A Markdown table of models: parameters, increase with three trained counts, GMACs per T.

    Raises:
        ValueError: no such model, or a size that a model does not accept.
    """
    head = " | ".join(f"{count} frames" for count in frames)
    lines = [f"| model | parameters | flexible | {head} |", "|---" * (len(frames) + 3) + "|"]
    return "\n".join([*lines, *(_costs(n, frames, side, num_classes) for n in names)]) + "\n"


def _costs(name: str, frames: Sequence[int], side: int, num_classes: int) -> str:
    import torch

    from ffn.core import convert
    from ffn.evaluation import count_parameters
    from ffn.zoo import create_model

    with torch.device("meta"):  # shapes only: nothing is computed
        model = create_model(name, num_classes=num_classes)
        gmacs = [gmacs_of(model, count, side) for count in frames]
    before, after = count_parameters(model), count_parameters(convert(model, (4, 8, 16)))
    size, added = f"{before / 1e6:.2f} M", f"+{100 * (after / before - 1):.2f} %"
    return f"| {' | '.join((f'`{name}`', size, added, *(f'{cost:.2f}' for cost in gmacs)))} |"


def gmacs_of(model: nn.Module, frames: int, side: int) -> float:
    """Multiply-accumulates of one clip in billions, for a model on the device "meta"."""
    import torch

    from ffn.evaluation import count_macs

    clip = torch.empty(1, 3, frames, side, side, device="meta")
    return count_macs(model, clip) / 1e9


def _shown_counts(record: WeightRecord) -> list[int]:
    return [count for count in record.trained_frames or record.metrics if count in record.metrics]


def _accuracies(record: WeightRecord) -> str:
    main = "map" if record.multi_label else "wer" if record.labels else "top1"
    return ", ".join(f"{t}: {record.metrics[t][main]:.1f}" for t in _shown_counts(record))


def _gmacs(record: WeightRecord) -> str:
    import torch

    from ffn.zoo import create_model

    with torch.device("meta"):
        model = create_model(record.model, num_classes=record.num_classes, **record.model_args)
    side = record.preprocessing["crop"]
    return ", ".join(f"{gmacs_of(model, t, side):.3g}" for t in _shown_counts(record))


def _place(record: WeightRecord) -> str:
    if record.file:
        return f"ships with ffn, `{record.sha256[:8]}`"
    return f"[link]({record.page})"
