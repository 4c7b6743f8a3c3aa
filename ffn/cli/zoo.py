"""List and download the weights of the zoo, or list models and their cost.

The environment variable FFN_HOME is the folder of downloads (default: ~/.cache/ffn), and
FFN_OFFLINE=1 forbids downloads.
"""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from ffn.cli.arguments import FrameCounts, Imports
from ffn.cli.zoo_page import CLASSES, FRAMES, SIDE, models_table, page, weights_table
from ffn.files import explain
from ffn.registry import import_extensions

Pattern = Annotated[str, Parameter(name="PATTERN")]


def list_weights(pattern: Pattern = "*", /) -> None:
    """List weights, what they know, and their accuracy.

    Args:
        pattern: Names to list, e.g. '*sthv1*'.
    """
    from ffn import zoo

    names = zoo.list_weights(pattern)
    if not names:
        zoo.find_record(pattern)  # raises: the message has the closest names
    print(weights_table(names), end="")


def list_models(
    pattern: Pattern = "*",
    /,
    *,
    frames: FrameCounts = FRAMES,
    side: PositiveInt = SIDE,
    classes: PositiveInt = CLASSES,
    imports: Imports = None,
) -> None:
    """List models, their parameters and their multiply-accumulates.

    Args:
        pattern: Names to list, e.g. 'tsm*', or a name such as tsm.resnet18.
        frames: Frames of a clip.
        side: Height and width of a clip in pixels.
        classes: Classes of a model.
    """
    import_extensions(imports or [])
    from ffn import zoo

    names = zoo.list_models(pattern) or [pattern]
    print(models_table(names, frames, side, classes), end="")


def fetch(*names: Annotated[str, Parameter(name="NAME", required=True)]) -> int:
    """Download weights and check their SHA-256.

    Prints path, size and SHA-256 of each; a damaged download is replaced. The exit status is 1 if
    one failed; the others are fetched.

    Args:
        names: Names in the zoo, patterns such as '*sthv1*' or '*' for all, or hf://user/name.
    """
    from ffn import zoo

    failed: list[str] = []
    expanded = [found for name in names for found in (zoo.list_weights(name) or [name])]
    for name in dict.fromkeys(expanded):
        try:
            path = zoo.fetch_weights(name)
        except (zoo.WeightsError, ValueError, OSError) as error:
            print(f"ffn zoo: {explain(error)}", file=sys.stderr)
            failed.append(name)
            continue
        size, digits = path.stat().st_size, zoo.sha256_of(path)
        print(f"{name}: {path}, {size:,} bytes, sha256 {digits}", flush=True)
    if failed:
        print(f"ffn zoo: not fetched: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def table() -> None:
    """Print the page of the zoo, model_zoo/README.md."""
    print(page(), end="")


zoo = {
    "list": list_weights,
    "models": list_models,
    "fetch": fetch,
    "table": table,
}
