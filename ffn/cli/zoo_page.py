"""The page of the zoo: tables of weights and of models as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffn.zoo import WeightRecord

HEAD = """# Model zoo

Written by `tools/zoo.py table --write`, from the records in `weights/` and the files in `results/`.

`ffn.load(NAME)` and `--weights NAME` accept every name below. *reported* numbers are those of the
authors; they were not measured here. Weights with a link are downloaded on first use, checked and
converted. Their hashes are not known in advance: the hash of the first download is stored next to
the file, and every later download must match it. Downloads from Google Drive need
`pip install 'frame-flexible[drive]'`.

## Weights

"""
FRAMES, SIDE, CLASSES = (4, 8, 16, 32, 64), 224, 174  # defaults of the table of models
MODELS = f"""## Models

Parameters, and multiply-accumulates of one clip in billions, with {CLASSES} classes at {SIDE} px;
for SlowFast, frames are those of the fast pathway. `flexible` is the increase in parameters with
three trained counts. `tools/zoo.py list --models PATTERN --frames 4 8 --side 256 --classes 400`
prints the table for other models, also `tsm.<timm name>`, and sizes.

"""


def page(folder: Path) -> str:
    """The content of ``model_zoo/README.md``, for the zoo in a folder."""
    from ffn.zoo import list_models
    from ffn.zoo.records import list_weights

    models = MODELS + models_table(list_models())
    parts = [HEAD + weights_table(list_weights()), models, "## Results\n"]
    for path in sorted((folder / "results").glob("*.md")):
        parts.append(path.read_text(encoding="utf-8"))
    return "\n".join(parts)


def weights_table(names: Sequence[str]) -> str:
    """A Markdown table of weights: top-1 per frame count, and the origin."""
    from ffn.zoo.records import find_record

    lines = [
        "| name | model | classes | top-1 % at frames | | published | sha256 |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_line(find_record(name)) for name in names)]) + "\n"


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
    if min(frames) < 1 or side < 1:
        raise ValueError(f"frames are {list(frames)} at {side} px; expected at least 1 of each")
    head = " | ".join(f"{count} frames" for count in frames)
    lines = [f"| model | parameters | flexible | {head} |", "|---" * (len(frames) + 3) + "|"]
    return "\n".join([*lines, *(_costs(n, frames, side, num_classes) for n in names)]) + "\n"


def _costs(name: str, frames: Sequence[int], side: int, num_classes: int) -> str:
    import torch

    from ffn.core import convert
    from ffn.evaluation import count_macs, count_parameters
    from ffn.zoo import create_model

    with torch.device("meta"):  # shapes only: nothing is computed
        model = create_model(name, num_classes=num_classes)
        gmacs = [
            sum(count_macs(model, torch.empty(1, 3, count, side, side)).values()) / 1e9
            for count in frames
        ]
    before, after = count_parameters(model), count_parameters(convert(model, (4, 8, 16)))
    size, added = f"{before / 1e6:.2f} M", f"+{100 * (after / before - 1):.2f} %"
    return f"| {' | '.join((f'`{name}`', size, added, *(f'{cost:.2f}' for cost in gmacs)))} |"


def _line(record: WeightRecord) -> str:
    trained = record.trained_frames or ()
    shown = trained or tuple(record.metrics)
    main = "map" if record.multi_label else "top1"
    accuracy = ", ".join(
        f"{t}: {record.metrics[t][main]:.2f}" for t in shown if t in record.metrics
    )
    kind = "frame-flexible" if trained else "plain"
    if record.ranges:
        kind += f" at {record.ranges[0][0]}-{record.ranges[-1][1]}"
    origin = ", ".join(filter(None, (record.origin, record.protocol)))
    where = f"[link]({record.page})" if record.page else "ships with ffn"
    known = f"`{record.sha256[:8]}`" if record.sha256 else "on first download"
    model = f"`{record.model}`, {kind}"
    cells = (f"`{record.name}`", model, record.num_classes, accuracy, origin, where, known)
    return f"| {' | '.join(map(str, cells))} |"
