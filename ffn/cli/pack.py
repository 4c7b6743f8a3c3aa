"""Pack the videos of a config into a clip store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators
from cyclopts.types import PositiveFloat, PositiveInt

from ffn.cli.arguments import ConfigFile, Override
from ffn.files import without_password

if TYPE_CHECKING:
    from ffn.data import ClipStore


def pack(
    config: ConfigFile,
    /,
    *overrides: Override,
    short_side: PositiveInt = 256,
    quality: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100))] = 90,
    shard_mib: PositiveInt = 256,
    timeout: PositiveFloat = 600,
    verify: bool = False,
) -> int:
    """Pack the training and validation videos of a config into a clip store.

    The store is the folder data.store under data.root; training and testing read it with
    data.format=store. data.workers processes decode (at least 1). The same command resumes an
    interrupted pack, and adds videos that a finished store lacks. Exit status: 0 success, 1 some
    videos are unreadable or damaged, 2 error.

    Args:
        short_side: Largest short side of the frames, in pixels; smaller videos are not enlarged.
        quality: JPEG quality, 1 to 100.
        shard_mib: Largest size of a shard, in MiB.
        timeout: Seconds per video; one that takes longer is unreadable.
        verify: Do not pack; verify all checksums of the store.
    """
    from ffn.engine.config import load_config

    loaded = load_config(config, overrides)
    options = loaded.data

    from ffn.engine.build_data import open_store, read_config_splits, store_location

    address = store_location(options)
    if verify:
        return _verify(open_store(options))

    from ffn import data
    from ffn.engine.tasks import TASKS

    videos = read_config_splits(options, labelled=TASKS[loaded.task.name].needs_labels)
    report = data.pack(
        [*videos.train, *videos.val],
        address,
        root=options.root,
        short_side=short_side,
        quality=quality,
        shard_mib=shard_mib,
        workers=max(1, options.workers),
        timeout=timeout,
        progress=True,
        **({} if options.frame_pattern is None else {"pattern": options.frame_pattern}),
    )
    for one in report.unreadable:
        part = "" if one[1:3] == (None, None) else f" ({one.start} … {one.end} s)"
        print(f"unreadable: {one.key}{part}: {one.reason}", file=sys.stderr)
    store = report.manifest
    print(
        f"{address}: {report.packed} clips packed, {report.kept} packed before, "
        f"{len(report.unreadable)} unreadable; in total {store.clips} clips, {store.frames} "
        f"frames, {store.bytes / 2**20:.1f} MiB"
    )
    return 1 if report.unreadable else 0


def _verify(store: ClipStore) -> int:
    from rich.progress import track

    damaged = store.verify(lambda clips: track(clips, "verifying", transient=True))
    for error in damaged:
        print(f"damaged: {error}", file=sys.stderr)
    print(f"{without_password(store.path)}: {len(store)} clips, {len(damaged)} damaged")
    return 1 if damaged else 0
