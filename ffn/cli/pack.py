"""``tools/pack.py CONFIG``: pack the videos of a config into a clip store, or verify one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffn.cli.arguments import add_overrides_argument
from ffn.cli.configs import find_config
from ffn.cli.program import Parser, called_as, fail, program

if TYPE_CHECKING:
    from ffn.engine.options import DataConfig


@program("pack", "the same command resumes")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, 1 if a video is unreadable or damaged, 2 on errors."""
    given = _parser().parse_with_overrides(arguments)

    from ffn.engine.config import load_config

    try:
        options = load_config(find_config(given.config), given.options).data
    except (ValueError, OSError) as error:
        return fail("pack", error)

    from ffn.engine.build_data import store_location

    address = store_location(options)
    try:
        _refuse_idle_options(given)
        return _verify(address, options) if given.verify else _pack(address, options, given)
    except (ValueError, OSError) as error:
        return fail("pack", error)


def _refuse_idle_options(given: argparse.Namespace) -> None:
    """Raise ValueError for options of packing beside ``--verify``."""
    defaults = vars(_parser().parse_args([given.config]))
    names = ("short_side", "quality", "shard_mib", "timeout", "append")
    idle = [name for name in names if getattr(given, name) != defaults[name]]
    if given.verify and idle:
        option = f"--{idle[0].replace('_', '-')}"
        raise ValueError(f"--verify does not pack, and {option} is an option of packing; drop one")


def _pack(address: str, options: DataConfig, given: argparse.Namespace) -> int:
    from ffn.data import pack
    from ffn.engine.build_data import read_config_splits

    if "://" in address:
        raise ValueError(f"data.store is {address}; pack into a folder and copy it there")
    videos = read_config_splits(options)
    report = pack(
        [*videos.train, *videos.val],
        address,
        root=options.root,
        short_side=given.short_side,
        quality=given.quality,
        shard_mib=given.shard_mib,
        workers=max(1, options.workers),
        timeout=given.timeout,
        append=given.append,
        progress=True,
        **({} if options.frame_pattern is None else {"pattern": options.frame_pattern}),
    )
    for one in report.unreadable:
        part = "" if one[1:3] == (None, None) else f" ({one.start} … {one.end} s)"
        print(f"unreadable: {one.key}{part}: {one.reason}", file=sys.stderr)
    print(
        f"{address}: {report.packed} clips packed, {report.kept} packed before, "
        f"{len(report.unreadable)} unreadable; in total {report.clips} clips, {report.frames} "
        f"frames, {report.bytes / 2**20:.1f} MiB"
    )
    return 1 if report.unreadable else 0


def _verify(address: str, options: DataConfig) -> int:
    from rich.progress import track

    from ffn.data import ClipStore

    store = ClipStore(address)
    damaged = store.verify(lambda numbers: track(numbers, "verifying", transient=True))
    for error in damaged:
        print(f"damaged: {error}", file=sys.stderr)
    print(f"{address}: {len(store)} clips, {len(damaged)} damaged")
    return 1 if damaged else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("pack"),
        description="Pack the training and validation videos of a config into a clip store: the "
        "folder data.store under data.root, with data.workers processes (at least 1). Training and "
        "testing read it with data.format=store. The same command resumes an interrupted pack. "
        "Exit status: 0 success, 1 some videos are unreadable or damaged, 2 error.",
    )
    parser.add_argument(
        "config", help="YAML file, or a name of `ffn configs`; its data section names the videos"
    )
    add_overrides_argument(parser)
    parser.add_argument(
        "--short-side",
        type=int,
        default=256,
        metavar="PX",
        help="maximum short side; smaller videos are not enlarged; default: 256",
    )
    parser.add_argument(
        "--quality", type=int, default=90, help="JPEG quality, 1 to 100; default: 90"
    )
    parser.add_argument(
        "--shard-mib",
        type=int,
        default=256,
        metavar="MIB",
        help="maximum size of a shard; default: 256",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="S",
        help="seconds per video; a video that takes longer is unreadable; default: 600",
    )
    parser.add_argument(
        "--append", action="store_true", help="add missing videos to a finished store"
    )
    parser.add_argument(
        "--verify", action="store_true", help="do not pack; verify all checksums of the store"
    )
    return parser
