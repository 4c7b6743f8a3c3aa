"""``tools/export.py --weights W --frames T --output FILE``: export a network to a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ffn.cli.arguments import add_imports_argument, load_imports, positive_int


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, load, export, print the report; returns 2 on an error."""
    given = _parser().parse_args(arguments)

    from ffn.export import ExportError, export
    from ffn.zoo import WeightsError, load_with_record

    try:
        load_imports(given)
        model, record = load_with_record(given.weights)
        size = given.size or record.preprocessing["crop"]
        report = export(
            model, given.output, frames=given.frames, size=size, overwrite=given.overwrite
        )
    except (ValueError, OSError, ImportError, ExportError, WeightsError) as error:
        print(f"export.py: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="export.py",
        description="Export trained weights for clips of one length and any batch size, and "
        "compare the file with the network. Of a frame-flexible network, the sub-network for T "
        "frames is exported.",
    )
    parser.add_argument(
        "--weights", required=True, help="a name of the zoo, a .pt or a .safetensors file"
    )
    parser.add_argument(
        "--frames", type=positive_int, required=True, metavar="T", help="frames of a clip"
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="FILE.pt2 is read by torch.export.load"
    )
    parser.add_argument(
        "--size",
        type=positive_int,
        metavar="PX",
        help="height and width of a clip; default: the trained crop",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    add_imports_argument(parser)
    return parser
