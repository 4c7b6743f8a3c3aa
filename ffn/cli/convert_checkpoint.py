"""``tools/convert_checkpoint.py IN OUT --from SOURCE --model M``: foreign weights as ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, convert, write weights and record, print what matched; returns 2 on a refusal."""
    given = _parser().parse_args(arguments)

    from ffn.data import Preprocessing, read_classes
    from ffn.zoo import WeightsError, save_weights
    from ffn.zoo.remap import from_foreign, read_foreign

    try:
        classes = read_classes(given.classes) if given.classes else None
        converted = from_foreign(
            read_foreign(given.input),
            source=given.source,
            model=given.model,
            trained_frames=tuple(given.trained_frames) if given.trained_frames else None,
            num_classes=given.num_classes,
        )
        record = save_weights(
            converted.model,
            given.output,
            {
                "model": given.model,
                "num_classes": converted.num_classes,
                "classes": classes,
                "trained_frames": converted.trained_frames,
                "preprocessing": Preprocessing().to_dict(),  # the reference's: 224 px, ImageNet
                "source": f"{given.source}: {given.input.name}",
            },
            overwrite=given.overwrite,
        )
    except (ValueError, FileNotFoundError, FileExistsError, WeightsError) as error:
        print(f"convert_checkpoint.py: {error}", file=sys.stderr)
        return 2

    print(converted.match)
    counts = " ".join(map(str, converted.trained_frames or ["none, a plain network"]))
    print(f"trained frames: {counts}")
    print(f"classes: {converted.num_classes}" + ("" if classes else ", unnamed"))
    print(f"written: {given.output} ({record.size:,} bytes) and its record, sha256 {record.sha256}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convert_checkpoint.py",
        description="Read a checkpoint of another implementation, without executing what it holds, "
        "and write safetensors with a record that ffn.load takes.",
    )
    parser.add_argument("input", metavar="IN", type=Path, help="a .pth file with a state_dict")
    parser.add_argument("output", metavar="OUT", type=Path, help="ends in .safetensors")
    parser.add_argument(
        "--from", dest="source", required=True, choices=["ffn-pytorch"], help="what wrote it"
    )
    parser.add_argument("--model", required=True, help="our name of the network, as tsm_r50")
    parser.add_argument(
        "--trained-frames",
        nargs="+",
        type=int,
        metavar="T",
        help="what a flexible checkpoint was trained at; with a plain one, the counts of the "
        "flexible network to start from it",
    )
    parser.add_argument(
        "--num-classes",
        type=int,
        metavar="K",
        help="default: the checkpoint's; another number starts a new classifier",
    )
    parser.add_argument("--classes", metavar="FILE", help="class names, one per line")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    return parser
