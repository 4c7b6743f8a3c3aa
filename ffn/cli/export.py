"""Export trained weights to files that run without ffn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.types import ExistingPath, PositiveInt

from ffn.cli.arguments import FrameCount, Imports, Overwrite, Weights
from ffn.files import refuse_existing
from ffn.registry import import_extensions

if TYPE_CHECKING:
    from torch import Tensor

    from ffn.data import VideoDataset
    from ffn.export import Calibration
    from ffn.zoo import WeightRecord

CALIBRATION_CLIPS, HELD_OUT_CLIPS = 256, 512  # at most
SEED = 0  # of the choice of clips

_INT8, _STREAM = Parameter(group=Group("int8")), Parameter(group=Group("stream"))


def export(
    *,
    weights: Weights,
    frames: FrameCount | None = None,
    all_frames: bool = False,
    to: str | None = None,
    output: Path | None = None,
    preprocess: bool = False,
    probabilities: bool = False,
    dynamic_frames: bool = False,
    size: PositiveInt | None = None,
    int8: Annotated[bool, _INT8] = False,
    calibration: Annotated[ExistingPath | None, _INT8] = None,
    root: Annotated[str | None, _INT8] = None,
    stride: Annotated[PositiveInt | None, _STREAM] = None,
    window: Annotated[PositiveInt | None, _STREAM] = None,
    overwrite: Overwrite = False,
    imports: Imports = None,
) -> None:
    """Export weights to a file that runs without ffn, for any batch size.

    The file is compared with the network. Of a frame-flexible network, the sub-network for
    --frames is exported.

    Args:
        frames: Frames of a clip.
        all_frames: Write a folder with a file per trained count and an index; ONNX files share
            their weights.
        to: torch (torch.export, .pt2), onnx, or aotinductor (.aoti.pt2); default: by the suffix of
            the output, of a folder onnx.
        output: Default: the name of the weights, with --to.
        preprocess: The file takes uint8 RGB frames (B, T, H, W, 3) of any size, and resizes, crops
            and normalizes them.
        probabilities: The file returns probabilities.
        dynamic_frames: The file takes clips of any length, not only T.
        size: Height and width of a clip; default: the trained crop.
        int8: Quantize an ONNX file; needs --calibration.
        calibration: Annotation list, or a folder per class: half of the videos set the ranges, the
            others compare int8 with fp32.
        root: Folder that relative paths of the list start from; default: its folder.
        stride: Of a causal network: the step of a stream that reads every n-th frame. The file
            takes a frame and the state of the stream, and returns logits and the next state.
        window: Number of frames after which the average over time forgets earlier ones; default:
            never.
    """
    if (frames is not None) + all_frames + (stride is not None) != 1:
        raise ValueError(
            "give one of --frames T, for a file, --all-frames, for a folder, or --stride N, for a "
            "step of a stream"
        )
    if stride is not None and (preprocess or probabilities or dynamic_frames or int8):
        raise ValueError(
            "--stride excludes --preprocess, --probabilities, --dynamic-frames and --int8: a step "
            "takes a normalized frame and returns logits"
        )
    if window is not None and stride is None:
        raise ValueError("--window is for the step of a stream; give --stride N too")
    if output is None and to is None:
        raise ValueError("give --output FILE, or the format with --to torch|onnx|aotinductor")
    if int8 != (calibration is not None) or (int8 and (all_frames or size)):
        raise ValueError("--int8 and --calibration belong together, for one file of trained size")
    import_extensions(imports or [])
    from ffn.export import export as export_file
    from ffn.export import export_all, export_step, stream
    from ffn.export.formats import suffix_of
    from ffn.zoo import load_with_record

    model, record = load_with_record(weights)
    kind = f".stride_{stride}" if stride else f".frames_{frames}" if frames else ""
    output = output or _default_output(f"{record.name}{kind}{'.int8' * int8}", to)
    refuse_existing([output], overwrite, inputs=[weights])
    options: dict[str, Any] = {
        "size": size,
        "record": _with_hash(record, weights).to_dict(),
        "overwrite": overwrite,
    }
    if stride is None:
        options |= {"preprocess": preprocess, "probabilities": probabilities}
        options["dynamic_frames"] = dynamic_frames
    if all_frames:
        print(*export_all(model, output, to=to or "onnx", **options), sep="\n")
        return
    if to is not None and not output.name.endswith(suffix_of(to)):
        raise ValueError(f"--output is {output}; files of --to {to} end in {suffix_of(to)}")
    if stride is not None:
        print(export_step(stream(model, stride=stride, window=window), output, **options))
        return
    if int8:
        options["calibration"] = read_calibration(calibration, record, frames, preprocess, root)
    print(export_file(model, output, frames=frames, **options))


def read_calibration(
    path: Path, record: WeightRecord, frames: int, preprocess: bool, root: str | None = None
) -> Calibration:
    """Calibration clips and held-out ones of the videos of a list, in a fixed random order.

    With ``preprocess``, inputs are uint8 frames (1, T, H, W, 3) instead of normalized clips.

    Raises:
        ValueError: the list is invalid, or has fewer than two videos.
    """
    import numpy as np

    from ffn.data import Preprocessing, VideoDataset, read_annotations
    from ffn.export import Calibration

    record.require_classes("int8 calibration")
    options = {} if path.is_dir() else {"root": root}
    videos = read_annotations(path, classes=record.classes, **options)[0]
    order = np.random.default_rng(SEED).permutation(len(videos)).tolist()
    half = min(CALIBRATION_CLIPS, len(videos) // 2)
    if half == 0:
        raise ValueError(f"{path} has {len(videos)} videos; int8 needs two or more")
    settings = Preprocessing.from_dict(record.preprocessing)
    if preprocess:  # the file crops
        settings = replace(settings, crop=settings.resize)
    options = {"views": (frames,), "preprocessing": settings}
    if pattern := record.options("data").get("frame_pattern"):
        options["pattern"] = pattern
    chosen, others = (
        VideoDataset([videos[n] for n in numbers], **options)
        for numbers in (order[:half], order[half : half + HELD_OUT_CLIPS])
    )
    held_out = zip(Inputs(others, preprocess), (one.label for one in others.records), strict=True)
    return Calibration(Inputs(chosen, preprocess), held_out)


@dataclass(frozen=True)
class Inputs(Sequence["Tensor"]):
    """Inputs of an exported file, (1, …) each, read when they are needed.

    Attributes:
        dataset: the videos, with one view.
        as_frames: uint8 frames (1, T, H, W, 3) instead of normalized clips.
    """

    dataset: VideoDataset
    as_frames: bool

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tensor:
        from ffn.data import Normalize

        (clip,) = self.dataset[index]["clips"].values()  # (C, T, H, W)
        if self.as_frames:
            return clip.movedim(0, -1)[None]
        return Normalize(self.dataset.preprocessing)(clip[None])


def _default_output(name: str, to: str) -> Path:
    """``NAME.frames_8.onnx``, or the folder ``NAME.onnx``, in the current folder."""
    from ffn.export.formats import suffix_of

    name = Path(name.replace("\\", "/")).name  # a record of others may have any name
    return Path(f"{name}{suffix_of(to)}")


def _with_hash(record: WeightRecord, weights: str) -> WeightRecord:
    """The record with the hash of the weights; that of a checkpoint has none."""
    from ffn.zoo import sha256_of

    if record.sha256 is not None or not Path(weights).is_file():
        return record
    return replace(record, sha256=sha256_of(Path(weights)))
