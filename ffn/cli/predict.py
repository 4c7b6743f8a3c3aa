"""Predict labels of video files, or of a list of videos into a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.types import ExistingFile, PositiveFloat, PositiveInt

from ffn.cli.arguments import (
    DEFAULT_NETWORK,
    FramesOrAuto,
    Imports,
    Network,
    Overwrite,
    Weights,
    find_device,
    refuse_missing,
)
from ffn.cli.predict_list import DEFAULT_BATCH, Batch, predict_list
from ffn.files import make_writable, refuse_existing, without_password
from ffn.registry import import_extensions

if TYPE_CHECKING:
    from ffn.serve import Predictor
    from ffn.serve.output import Output
    from ffn.serve.readers import Readers

NAME = "{name}"  # in --save: the name of the video without its suffix
PICTURES = (".png", ".gif", ".mp4")


@Parameter(name="*", group=Group("Number of frames; default: the largest trained count"))
@dataclass(frozen=True)
class Choice:
    """The number of frames of a clip; one of these.

    Attributes:
        frames: Number; or auto: 8 per second, rounded up, none twice; or early_exit: more only if
            few are not enough, by the early exit that is kept with the weights.
        budget_ms: The most frames whose forward pass takes at most this time, measured once.
        budget_gmacs: The most frames of at most so many giga multiply-accumulates.
        early_exit: As --frames early_exit, by this file of `ffn early_exit`.
    """

    frames: FramesOrAuto | Literal["early_exit"] | None = None
    budget_ms: PositiveFloat | None = None
    budget_gmacs: PositiveFloat | None = None
    early_exit: ExistingFile | None = None

    @property
    def exits_early(self) -> bool:
        """Whether early exit chooses."""
        return self.early_exit is not None or self.frames == "early_exit"

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a predictor."""
        budgets = {"budget_ms": self.budget_ms, "budget_gmacs": self.budget_gmacs}
        return {"frames": self.frames, **budgets}


@Parameter(name="*", group=Group("Long videos"))
@dataclass(frozen=True)
class Window:
    """Windows of long videos.

    Attributes:
        window: Seconds: predict windows of this length, and join those of one label to segments.
        step: Seconds from the start of a window to that of the next; default: half a window.
        fps: Frames per second of folders of frames, which have no times.
    """

    window: PositiveFloat | None = None
    step: PositiveFloat | None = None
    fps: PositiveFloat | None = None


@Parameter(name="*", group=Group("Pictures"))
@dataclass(frozen=True)
class Picture:
    """What is drawn.

    Attributes:
        save: Write *.png or *.gif, the frames that the network saw with the labels, or *.mp4, the
            video with its labels; `{name}` stands for the name of a file.
        heat_map: Draw over the frames of --save where the network sees evidence (Grad-CAM).
        label: Class of the heat map; default: the most probable.
        layer: Layer whose feature map the heat map is made of; default: the last feature maps.
    """

    save: str | None = None
    heat_map: bool = False
    label: str | None = None
    layer: str | None = None


def predict(
    *files: Annotated[str, Parameter(name="FILE")],
    weights: Weights,
    choice: Choice = Choice(),
    window: Window = Window(),
    picture: Picture = Picture(),
    batch: Batch = DEFAULT_BATCH,
    network: Network = DEFAULT_NETWORK,
    top: PositiveInt = 5,
    format: Literal["text", "json"] = "text",
    overwrite: Overwrite = False,
    imports: Imports = None,
) -> int:
    """Predict labels of videos, with any number of frames.

    Prints the labels of files; with --output, writes those of a list of videos to a table.

    Exit status: 0: predicted. 1: a file could not be read. 2: error, or no file exists.

    Args:
        files: Video files, folders of videos, folders of frames, or addresses as
            https://host/video.mp4.
        top: Labels per file.
        format: text for people; json: an object per line and file.
    """
    if not files:
        raise ValueError("no FILE is given; name a video, or a folder of videos")
    refuse_missing(*files)
    _refuse(files, choice, window, picture, batch, format)
    if batch.output is not None:
        refuse_existing([batch.output], overwrite, inputs=files)
        make_writable(batch.output.parent)
        import_extensions(imports or [])
        from ffn.engine.failures import processes

        chosen, remedy = find_device(network.device), "lower --batch-size"
        with processes("ffn predict", device=chosen, remedy=remedy) as world:
            predict_list(Path(files[0]), weights, choice.options, batch, network, top, world)
        return 0
    paths = [path for given in files for path in _videos(given)]
    targets = _targets(picture, window, paths, overwrite)
    import_extensions(imports or [])
    from ffn.serve.output import Output
    from ffn.serve.readers import Readers

    is_one_clip = len(paths) == 1 and window.window is None and choice.budget_ms is None
    predictor = network.build_predictor(
        weights, early_exit=choice.early_exit, for_one_clip=is_one_clip
    )
    report = Output(format, top)
    with Readers(1, batch.timeout, fork=True) as readers:
        predict_one = _prediction(predictor, choice, window, picture, report, readers)
        failed = _predict_files(paths, targets, predict_one, report)
    if format == "text" and predictor.record.knows:
        print(f"{predictor.record.name} knows {predictor.record.knows}", file=sys.stderr)
    if failed:
        print(f"ffn predict: {failed} of {len(paths)} files could not be read", file=sys.stderr)
    return 1 if failed else 0


def _refuse(
    files: Sequence[str], choice: Choice, window: Window, picture: Picture, batch: Batch, form: str
) -> None:
    """Raise ValueError for options that exclude each other, or would do nothing."""
    is_list, in_windows = batch.output is not None, window.window is not None
    saves_video = picture.save is not None and picture.save.lower().endswith(".mp4")
    lists = [one for one in files if one.lower().endswith((".csv", ".txt"))]
    single = choice.exits_early or window != Window() or picture != Picture()
    is_csv = form != "json" and str(batch.output).lower().endswith(".csv")
    wrong = {
        f"--output is for one list of videos; got {len(files)} files": is_list and len(files) > 1,
        "early exit, windows and pictures are for videos, not for a list": is_list and single,
        f"--output writes a table *.csv; got {batch.output}, --format {form}": is_list
        and not is_csv,
        f"{''.join(lists[:1])} is a list of videos; add --output TABLE.csv": lists and not is_list,
        "--root, --batch-size and --workers need --output": not is_list
        and replace(batch, timeout=DEFAULT_BATCH.timeout) != DEFAULT_BATCH,
        "--timeout is for whole videos, without --window": in_windows
        and batch.timeout != DEFAULT_BATCH.timeout,
        "--step needs --window": window.step is not None and not in_windows,
        "--fps needs --window or --save *.mp4": window.fps is not None
        and not (in_windows or saves_video),
        "--heat-map needs --save": picture.heat_map and picture.save is None,
        "--label and --layer need --heat-map": (picture.label or picture.layer)
        and not picture.heat_map,
        "--heat-map needs --save *.png or *.gif, without --window": picture.heat_map
        and (saves_video or in_windows),
        "early exit chooses the frames: --frames early_exit, without budgets": choice.exits_early
        and replace(choice, early_exit=None) not in (Choice(), Choice("early_exit")),
        "early exit is for whole videos, without --window": choice.exits_early and in_windows,
    }
    for reason, applies in wrong.items():
        if applies:
            raise ValueError(reason)


def _videos(given: str) -> Iterator[str]:
    """The videos in a folder, sorted; or the given file, folder of frames or address itself."""
    from ffn.data.suffixes import is_frame_folder, videos_in

    found = []
    if os.path.isdir(given) and not is_frame_folder(Path(given)):
        found = [os.path.join(given, video.name) for video in videos_in(Path(given))]
    yield from found or [given]


def _predict_files(
    paths: Sequence[str],
    targets: Sequence[Path | None],
    predict_one: Callable[[str, Path | None], None],
    report: Output,
) -> int:
    """Predict one file after another; the number of those that could not be read."""
    from ffn.data import VideoError

    failed = 0
    for path, target in zip(paths, targets, strict=True):
        try:
            predict_one(path, target)
        except VideoError as error:
            print(f"ffn predict: {error}", file=sys.stderr)
            report.add_error(path, error.cause)
            failed += 1
    return failed


def _prediction(
    predictor: Predictor,
    choice: Choice,
    window: Window,
    picture: Picture,
    report: Output,
    readers: Readers,
) -> Callable[[str, Path | None], None]:
    """A function that predicts a video, draws it if there is a target, and reports it."""
    from ffn.serve import merge_windows

    reader = None if choice.exits_early else predictor.reader(**choice.options)
    options = {"pattern": predictor.pattern, "fps": window.fps}

    def whole(path: str, target: Path | None) -> None:
        if reader is None:
            clip, prediction = predictor.predict_early_exit([path], readers.read)[0]
        else:
            clip = readers.read([reader], path)[0]
            prediction = predictor.predict([clip])[0]
        if target is not None:
            from ffn.serve.pictures import save

            heat = None
            if picture.heat_map:
                label = picture.label or prediction.top(1)[0][0]
                heat = predictor.heat_map(clip, label=label, layer=picture.layer)
            save(target, path, clip, prediction, heat=heat, **options)
        report.add(prediction)

    def in_windows(path: str, target: Path | None) -> None:
        given = {"step": window.step, "fps": window.fps, **choice.options}
        found = list(predictor.windows(path, window.window, **given))
        segments = merge_windows(found)
        if target is not None:
            from ffn.serve.pictures import save_video

            save_video(target, path, segments, **options)
        report.add_windows(found, segments)

    return whole if window.window is None else in_windows


def _targets(
    picture: Picture, window: Window, paths: Sequence[str], overwrite: bool
) -> list[Path | None]:
    """The picture or video of each file that ``--save`` names; None without it.

    Raises:
        ValueError: another kind of file, or one for several videos.
        FileExistsError: a file exists.
        OSError: a folder cannot be written.
    """
    if picture.save is None:
        return [None] * len(paths)
    kind = Path(picture.save).suffix.lower()
    allowed = PICTURES if window.window is None else (".mp4",)
    if kind not in allowed:
        raise ValueError(f"--save is {picture.save}; expected a file *{', *'.join(allowed)}")
    names = [
        Path(os.path.abspath(without_password(path))).stem for path in paths
    ]  # "." is a folder, too
    targets = [Path(picture.save.replace(NAME, name)) for name in names]
    if len({*targets}) < len(targets):
        raise ValueError(
            f"--save is {picture.save}, one file for several videos; put {NAME} into it, which is "
            f"the name of the video, e.g. out/{NAME}{kind}"
        )
    refuse_existing(targets, overwrite, inputs=paths)
    for folder in {target.parent for target in targets}:
        make_writable(folder)
    return targets
