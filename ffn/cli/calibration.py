"""The clips that set the ranges of int8, and those that compare int8 with fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ffn.cli.configs import config_names, find_config

if TYPE_CHECKING:
    from ffn.data import Preprocessing, Record
    from ffn.data.decoding import Video
    from ffn.export import Calibration

CONFIGS = (".yaml", ".yml")
CLIPS = 256  # that set the ranges, unless a command says otherwise


def read_calibration(
    sources: Sequence[str],
    *,
    classes: Sequence[str] | None,
    preprocessing: Preprocessing,
    pattern: str | None,
    frames: int,
    held_out: int,
    root: str | None = None,
    clips: int | None = None,
    as_frames: bool = False,
    training_only: bool = False,
    seed: int = 0,
) -> Calibration:
    """Draw calibration and held-out videos.

    Args:
        sources: a config with ``key=value`` overrides: calibration clips from its training list,
            held-out clips from its validation list. Or one or two annotation lists; from a single
            list, the held-out videos are others.
        classes: class names of the network.
        preprocessing: of the network.
        pattern: of the names of frames in folders, for lists; a config has its own.
        frames: T.
        held_out: held-out clips, at most.
        root: folder that relative paths of a list start from; default: that of the list.
        clips: calibration clips, at most; default: 256, or half of the videos of the only list.
        as_frames: inputs are uint8 frames (1, T, H, W, 3) instead of normalized clips.
        training_only: of a config, take the held-out clips from the training list as well.
        seed: of the draw.

    Raises:
        ValueError: a list or the config is invalid, or has too few videos.
        FileNotFoundError: a file does not exist.
    """
    from ffn.export import Calibration

    generator = np.random.default_rng(seed)
    train, val, open_record = _read_records(sources, classes, pattern, root, training_only)
    if clips is None:
        clips = CLIPS if val else min(CLIPS, len(train) // 2)
    train = [train[i] for i in generator.permutation(len(train))]
    val = [val[i] for i in generator.permutation(len(val))] if val else train[clips:]
    if not train or not val:
        raise ValueError(
            f"{' '.join(sources)}: {len(train)} videos are too few for {clips} calibration clips "
            "and held-out clips; lower --calibration-clips, or name a second list"
        )
    chosen = Inputs(train[:clips], open_record, frames, preprocessing, as_frames)
    others = Inputs(val[:held_out], open_record, frames, preprocessing, as_frames)
    return Calibration(chosen, Labelled(others))


class Inputs(Sequence[Tensor]):
    """Inputs of an exported file, (1, …) each, by the test rule; read when they are needed.

    Args:
        records: the videos.
        open_record: opens one.
        frames: T.
        preprocessing: of the network.
        as_frames: return uint8 frames (1, T, H, W, 3) instead of normalized clips.
    """

    def __init__(
        self,
        records: Sequence[Record],
        open_record: Callable[[Record], Video],
        frames: int,
        preprocessing: Preprocessing,
        as_frames: bool,
    ) -> None:
        from ffn.data import EvalTransform, Normalize

        self.records, self.frames, self.preprocessing = records, frames, preprocessing
        self._open = open_record
        self._transform, self._normalize = EvalTransform(preprocessing), Normalize(preprocessing)
        self._as_frames = as_frames

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Tensor:
        from ffn.data.crops import naming_video

        frames = self._read(self.records[index])
        if self._as_frames:
            return frames[None]
        with naming_video(self.records[index].path):
            return self._normalize(self._transform(frames).transpose(0, 1)[None])

    def _read(self, record: Record) -> Tensor:
        """Frames (T, H, W, 3) of a video."""
        from ffn.data import sample_views

        video = self._open(record)
        usable = range(len(video))
        if record.start is not None or record.end is not None:
            usable = video.between(record.start, record.end)
        rule = self.preprocessing.sampling
        indices = sample_views(len(usable), (self.frames,), rule=rule)[self.frames]
        return video.read([usable[i] for i in indices])


class Labelled:
    """Inputs with their labels."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        labels = (record.label for record in self.inputs.records)
        return zip(self.inputs, labels, strict=True)


def is_config(source: str) -> bool:
    """Whether a source is a config, by name or by file; otherwise it is a list or a folder."""
    path = Path(source)
    return (path.suffix in CONFIGS or source in config_names()) and not path.is_dir()


def _read_list(source: str, classes: Sequence[str] | None, root: str | None) -> list[Record]:
    """Videos of a list or of a folder per class.

    Raises:
        FileNotFoundError: the list, or its first video, does not exist.
    """
    from ffn.data import read_annotations

    if Path(source).is_dir():
        return read_annotations(source, classes=classes)[0]
    records, _ = read_annotations(source, root=root, classes=classes)
    if not Path(records[0].path).exists():
        raise FileNotFoundError(
            f"{records[0].path}, the first video of {source}, does not exist; relative paths start "
            f"from {root or 'the folder of the list'}. Name another folder: --root of an export, "
            "data.root of a test"
        )
    return records


def _read_records(
    sources: Sequence[str],
    classes: Sequence[str] | None,
    pattern: str | None,
    root: str | None,
    training_only: bool,
) -> tuple[list[Record], list[Record], Callable[[Record], Video]]:
    """Videos for calibration, held-out ones, and how to open them.

    There are no held-out ones for a single list, nor for a config with ``training_only``.
    """
    from ffn.data import open_video

    if not is_config(sources[0]):
        if len(sources) > 2:
            raise ValueError(f"--calibration has {len(sources)} lists; expected one or two")
        read = [_read_list(source, classes, root) for source in sources]
        train, val = (*read, []) if len(read) == 1 else read
        named = {} if pattern is None else {"pattern": pattern}
        return train, val, lambda record: open_video(record.path, frames=record.frames, **named)

    from ffn.engine.build_data import open_record_of, read_config_splits
    from ffn.engine.config import load_config

    options = load_config(find_config(sources[0]), sources[1:]).data
    splits = read_config_splits(options, classes=classes)
    return splits.train, [] if training_only else splits.val, open_record_of(options)
