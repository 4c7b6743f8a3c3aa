"""``tools/zoo.py``: what the zoo holds, as a table; ``--write`` makes ``model_zoo/README.md``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffn.zoo import WeightRecord

HEAD = """# Model zoo

Written by `tools/zoo.py --write`, from the records in `weights/` and the files in `results/`.

`ffn.load(NAME)` and `--weights NAME` take every name below. What is *reported* is what the authors
published; it was not measured here. Weights with a link are downloaded on first use, checked and
converted. None of them could be downloaded where this was written: their hashes are not known yet,
the hash of your first download is kept beside it and asked for from then on.

## Weights

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or write the page; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="zoo.py", description="List the weights of the zoo, with what they reach."
    )
    parser.add_argument("pattern", nargs="?", default="*", help="names to list, as '*sthv1*'")
    parser.add_argument("--write", action="store_true", help="write model_zoo/README.md anew")
    given = parser.parse_args(arguments)

    from ffn.zoo.records import list_weights, zoo_folder

    if given.write:
        path = zoo_folder().parent / "README.md"
        path.write_text(page(zoo_folder().parent), encoding="utf-8")
        print(path)
        return 0
    print(weights_table(list_weights(given.pattern)), end="")
    return 0


def page(folder: Path) -> str:
    """The whole of ``model_zoo/README.md``, for the zoo in a folder."""
    from ffn.zoo.records import list_weights

    parts = [HEAD + weights_table(list_weights()), "## Results\n"]
    for path in sorted((folder / "results").glob("*.md")):
        parts.append(path.read_text(encoding="utf-8"))
    return "\n".join(parts)


def weights_table(names: Sequence[str]) -> str:
    """One line of Markdown per set of weights: top-1 per frame count, and where it comes from."""
    from ffn.zoo.records import find_record

    lines = [
        "| name | model | classes | top-1 % at frames | | published | sha256 |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_line(find_record(name)) for name in names)]) + "\n"


def _line(record: WeightRecord) -> str:
    trained = record.trained_frames or ()
    shown = trained or tuple(record.metrics)
    accuracy = ", ".join(
        f"{t}: {record.metrics[t]['top1']:.2f}" for t in shown if t in record.metrics
    )
    kind = "frame-flexible" if trained else "plain"
    origin = ", ".join(filter(None, (record.origin, record.protocol)))
    where = f"[link]({record.page})" if record.page else "ships with ffn"
    known = f"`{record.sha256[:8]}`" if record.sha256 else "on first download"
    model = f"`{record.model}`, {kind}"
    cells = (f"`{record.name}`", model, record.num_classes, accuracy, origin, where, known)
    return f"| {' | '.join(map(str, cells))} |"
