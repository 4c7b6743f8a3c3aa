"""Draw the clips that the network gets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts.types import PositiveInt

from ffn.cli.arguments import ConfigFile, FrameCounts, Override, Overwrite
from ffn.files import make_writable, refuse_existing

if TYPE_CHECKING:
    from torch import Tensor

    from ffn.data import Record, Splits, VideoDataset
    from ffn.data.contact_sheet import Panel, Strip
    from ffn.engine.mixup import BatchMix
    from ffn.engine.options import Config


def browse(
    config: ConfigFile,
    /,
    *overrides: Override,
    videos: PositiveInt = 4,
    split: Literal["train", "val"] = "train",
    frames: FrameCounts | None = None,
    output: Path = Path("samples.png"),
    overwrite: Overwrite = False,
) -> None:
    """Draw the clips that training and testing give the network.

    The picture has the clips of the first videos of a training with this config, after frame
    sampling, crop, flip, augmentation and mixup, and the test clips of the same videos. Another
    train.seed gives other videos. No network is loaded.

    Args:
        videos: Number of videos.
        split: List of the videos; both kinds of clips are shown for either.
        frames: Frames of the test clips; default: task.frames.
        output: PNG file.
    """
    if output.suffix.lower() != ".png":
        raise ValueError(f"--output is {output}; the picture is a PNG file, e.g. samples.png")
    refuse_existing([output], overwrite)
    make_writable(output.parent)

    from ffn.engine.config import load_config

    options = load_config(config, overrides)

    from ffn.data.contact_sheet import save_contact_sheet
    from ffn.engine.build_data import read_config_splits
    from ffn.engine.tasks import TASKS

    splits = read_config_splits(options.data, labelled=TASKS[options.task.name].needs_labels)
    records = getattr(splits, split)
    panels = _panels(
        _for_videos(options, min(videos, len(records))),
        replace(splits, train=records),
        frames or options.task.frames,
    )
    title = f"{len(panels)} of {len(records)} {split} videos of {config}"
    save_contact_sheet(output, title, panels)
    print(output)


def _for_videos(config: Config, videos: int) -> Config:
    """The config with a batch of this many videos."""
    train = {"batch_size": videos * config.train.repeated_aug, "grad_accum_steps": 1}
    return config.model_copy(update={"train": config.train.model_copy(update=train)})


def _panels(config: Config, splits: Splits, frames: Sequence[int]) -> list[Panel]:
    """The first training batch, and the test clips of its videos."""
    import torch

    from ffn.data import label_text
    from ffn.data.contact_sheet import Panel
    from ffn.engine import build_data
    from ffn.engine.distributed import World

    world = World(rank=0, size=1, device=torch.device("cpu"))
    loader = build_data.build_train_loader(config, splits, world)
    tests = build_data.build_test_loader(
        config,
        replace(splits, val=splits.train),
        world,
        frames=frames,
        preprocessing=build_data.build_preprocessing(config.data),
    ).dataset
    keys = list(islice(loader.sampler, config.train.batch_size))
    keys, batch = _read_batch(loader.dataset, keys)
    batch_mix = build_data.build_batch_mix(config, len(splits.classes))
    clips, labels = _mix(batch, batch_mix)
    smoothed = batch_mix.absent
    panels: dict[int, Panel] = {}
    for place, key in enumerate(keys):
        index, kind = key[1], "training"
        record, (count, indices) = splits.train[index], loader.dataset.frame_indices(key)
        text_of = getattr(splits.labels, "text", partial(label_text, classes=splits.classes))
        name = text_of(record.label) or "no label"
        if config.train.repeated_aug > 1:
            kind += f", copy {key[2] + 1}"
        panel = panels.setdefault(index, Panel(name, [_describe(record, count)], []))
        panel.strips.extend(
            _strip(kind, clip[place], indices[view][0]) for view, clip in clips.items()
        )
        target = name
        if not hasattr(splits.labels, "text"):  # which cannot be mixed
            target = _target(labels[place], splits.classes, smoothed) or "no label"
        if target != name:
            panel.lines.append(f"{kind}, label: {target}")
    for index, panel in panels.items():
        panel.strips.extend(_test_strips(tests, index))
    return list(panels.values())


def _read_batch(dataset: VideoDataset, keys: Sequence[tuple]) -> tuple[list[tuple], dict]:
    """The samples of the keys as a batch, and the keys of those that can be read."""
    from ffn.data import collate_train

    samples = [dataset[key] for key in keys]
    for sample in samples:
        if not sample["ok"]:
            print(f"skipped: {sample['error']}", file=sys.stderr)
    readable = [key for key, sample in zip(keys, samples, strict=True) if sample["ok"]]
    if not readable:
        raise ValueError(
            f"none of {len(keys)} videos can be read; check them with ffn check_data, or "
            "choose others with train.seed"
        )
    return readable, collate_train(samples)


def _mix(batch: dict, batch_mix: BatchMix) -> tuple[dict[int, Tensor], Tensor]:
    """The uint8 clips and the labels after mixup and CutMix, as in the first step of a training."""
    # A weighted mean of clips is the same before and after their normalization.
    clips = {view: clip.float() for view, clip in batch["clips"].items()}
    mixed = batch_mix({"clips": clips, "label": batch["label"]}, step=0, micro=0, rank=0)
    clips = {view: clip.round().clamp(0, 255).byte() for view, clip in mixed["clips"].items()}
    return clips, mixed["label"]


def _test_strips(tests: VideoDataset, index: int) -> list[Strip]:
    """The test clips of a video: all clips and crops of each frame count."""
    sample, crops = tests[index], tests.protocol.crops
    if not sample["ok"]:
        print(f"skipped: {sample['error']}", file=sys.stderr)
        return []
    strips, (_, indices) = [], tests.frame_indices(index)
    for view, clips in sample["clips"].items():
        for number, clip in enumerate(clips.view(-1, *clips.shape[-4:])):
            kind = f"test, clip {number // crops + 1}, crop {number % crops + 1}"
            strips.append(_strip(kind, clip, indices[view][number // crops]))
    return strips


def _strip(kind: str, clip: Tensor, indices: Sequence[int]) -> Strip:
    from ffn.data.contact_sheet import Strip

    return Strip(clip, f"{kind}: frames {', '.join(map(str, indices))}")


def _describe(record: Record, frames: int) -> str:
    """Path, time range and number of frames of a video."""
    ends = ["" if end is None else f"{end:g}" for end in (record.start, record.end)]
    part = f", {ends[0]} … {ends[1]} s" if any(ends) else ""
    return f"{record.path}{part}, {frames} frames"


def _target(label: Tensor, classes: Sequence[str], smoothed: float) -> str:
    """A class, several, or the classes of a mixed label (K,) with their shares, largest first."""
    from ffn.data import label_text

    if not label.ndim:
        return classes[label]
    shares, found = label.sort(descending=True)
    parts = [*zip(shares.tolist(), found.tolist(), strict=True)]
    if all(share in (0, 1) for share, _ in parts):
        return label_text(tuple(sorted(i for share, i in parts if share)), classes)
    return " + ".join(f"{share:.2f} {classes[i]}" for share, i in parts if share > smoothed + 1e-4)
