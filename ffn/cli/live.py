"""``tools/live.py SOURCE --weights W``: labels of a camera, a stream or a file while it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    WEIGHTS_HELP,
    add_device_argument,
    add_imports_argument,
    add_network_arguments,
    find_device,
    frames_or_auto,
    load_imports,
    non_negative_int,
    non_negative_number,
    positive_int,
    positive_number,
    refuse_existing,
)
from ffn.cli.predict_list import build_predictor
from ffn.cli.program import Parser, called_as, fail, prefix, program
from ffn.files import make_writable

if TYPE_CHECKING:
    from ffn.serve import LivePredictor, SourceEvent
    from ffn.serve.live.report import LiveReport, Totals


@program("live", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the labels of a stream while it runs.

    Returns:
        0; 1 if the source could not be read; 2 for another error.
    """
    given = _parser().parse_args(arguments)

    from ffn.data import VideoError
    from ffn.zoo import WeightsError

    try:
        _check_files(given)
        load_imports(given)
        _predict(given)
    except VideoError as error:
        print(f"{prefix('live')}: {error}", file=sys.stderr)
        return 1
    except (ValueError, TypeError, OSError, ImportError, WeightsError) as error:
        return fail("live", error)
    return 0


def _predict(given: argparse.Namespace) -> None:
    """Report the answers until the stream, or the duration, ends; then draw the log."""
    from ffn.serve.live.report import LIVE_FORMATS, LiveJson, Totals

    reports: list[LiveReport] = [LIVE_FORMATS[given.format](sys.stdout, given.top)]
    totals = Totals()

    def add_event(event: SourceEvent) -> None:
        for report in reports:
            report.add_event(event)

    with ExitStack() as after, ExitStack() as stack:
        live = stack.enter_context(_live(given, add_event))
        if given.log is not None:
            reports.append(LiveJson(stack.enter_context(given.log.open("w")), given.top))
            if given.figure is not None:
                after.callback(_draw, given)  # also after Ctrl-C, once the log is closed
        stack.callback(_print_totals, totals)
        for report in reports:
            stack.callback(report.close)
        for answer in live:
            totals.add(answer)
            for report in reports:
                report.add(answer)
            if given.duration is not None and answer.prediction.end >= given.duration:
                break


def _print_totals(totals: Totals) -> None:
    if totals.answers:
        print(f"{prefix('live')}: {totals}", file=sys.stderr)


def _live(given: argparse.Namespace, on_event: Callable[[SourceEvent], None]) -> LivePredictor:
    """The live predictor that the options describe.

    Raises:
        ValueError, OSError, ffn.zoo.WeightsError: the weights or options are invalid.
        VideoError: there is no such camera.
    """
    from ffn.serve import LivePredictor, Smoothing, open_source

    predictor = build_predictor(given, find_device(given.device), given.precision)
    source = open_source(
        given.source,
        speed=given.speed,
        repeat=given.repeat,
        fps=given.fps,
        attempts=given.attempts,
        timeout=given.timeout,
        options=dict(given.input_option),
        pattern=predictor.pattern,
    )
    return LivePredictor(
        predictor,
        source,
        given.window,
        step=given.step,
        every=given.every,
        frames=None if given.frames == "auto" else given.frames,
        smoothing=Smoothing(given.smooth, given.margin, given.dwell),
        max_lag=given.max_lag,
        max_bytes=int(given.max_mib * 2**20),
        on_event=on_event,
    )


def _check_files(given: argparse.Namespace) -> None:
    """Raise for files that exist or cannot be written, before the stream begins."""
    if given.figure is not None and given.log is None:
        raise ValueError(f"--figure is {given.figure}; it needs --log, which it is drawn from")
    if given.figure is not None and given.figure.resolve() == given.log.resolve():
        raise ValueError(f"--log and --figure are both {given.log}; name two files")
    for option, path in (("--log", given.log), ("--figure", given.figure)):
        if path is not None:
            inputs = (given.source, given.weights)
            refuse_existing(path, given.overwrite, option, inputs=inputs)
            make_writable(path.parent)
    if given.figure is not None:
        from ffn.evaluation.plots import new_figure

        known = new_figure(1, 1).canvas.get_supported_filetypes()
        if given.figure.suffix[1:].lower() not in known:
            raise ValueError(
                f"--figure is {given.figure}; expected a file with one of the suffixes "
                f"{', '.join(f'.{name}' for name in sorted(known))}"
            )


def _draw(given: argparse.Namespace) -> None:
    from ffn.serve.live.figure import read_live_log, save_live_figure

    log = read_live_log(given.log)
    if any("event" not in entry for entry in log):
        save_live_figure(log, given.figure)


def _input_option(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, as rtsp_transport=udp")
    return key, value


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("live"),
        description="Predict the labels of a camera, of a stream at an address, or of a video file "
        "as if it were live. The number of frames follows the load of the machine. Exit status: 0 "
        "the stream or the duration has ended; 1 the source could not be read; 2 error, with a "
        "message that names the cause; 130 Ctrl-C.",
    )
    option = parser.add_argument
    option(
        "source",
        metavar="SOURCE",
        help="a camera, as 0 or /dev/video0; an address, as rtsp://host/stream; a video file or a "
        "folder of frames",
    )
    option("--weights", required=True, help=WEIGHTS_HELP)
    _add_answers(parser)
    _add_source(parser)
    _add_output(parser)
    add_device_argument(parser)
    add_network_arguments(parser)
    add_imports_argument(parser)
    return parser


def _add_answers(parser: argparse.ArgumentParser) -> None:
    """Options about when an answer is given, and about what."""
    option = parser.add_argument
    option(
        "--window",
        type=positive_number,
        default=2.0,
        metavar="SECONDS",
        help="the last seconds of the stream, which an answer is about; default: 2",
    )
    either = parser.add_mutually_exclusive_group().add_argument
    either(
        "--step",
        type=positive_number,
        metavar="SECONDS",
        help="from one answer to the next; default: half a window",
    )
    either("--every", type=positive_int, metavar="n", help="frames from one answer to the next")
    option(
        "--frames",
        type=frames_or_auto,
        default="auto",
        metavar="n",
        help="frames of a clip; auto, the default: by the load, up to the largest trained count",
    )
    option(
        "--smooth",
        type=non_negative_number,
        default=1.0,
        metavar="SECONDS",
        help="time constant of averaged probabilities; 0: none; default: 1",
    )
    option(
        "--margin",
        type=non_negative_number,
        default=0.1,
        metavar="p",
        help="another label is shown if it leads by this averaged probability; default: 0.1",
    )
    option(
        "--dwell",
        type=non_negative_number,
        default=1.0,
        metavar="SECONDS",
        help="another label is also shown if it has led for this time; default: 1",
    )
    option(
        "--max-lag",
        type=positive_number,
        default=1.0,
        metavar="SECONDS",
        help="frames that are late by more than this are dropped; default: 1",
    )
    option(
        "--max-mib",
        type=positive_number,
        default=256.0,
        metavar="MiB",
        help="largest size of the frames of a window in memory; default: 256",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Options of the source."""
    option = parser.add_argument
    option("--speed", type=positive_number, metavar="x", help="of a file: factor of its rate")
    option("--repeat", action="store_true", help="of a file: play it again and again")
    option(
        "--fps",
        type=positive_number,
        metavar="n",
        help="frames per second of folders of frames, which have no times",
    )
    option(
        "--attempts",
        type=non_negative_int,
        metavar="n",
        help="of a camera or an address: number of attempts to connect again after an "
        "interruption; default: no limit",
    )
    option(
        "--timeout",
        type=positive_number,
        default=5.0,
        metavar="SECONDS",
        help="of a camera or an address: to connect, and to wait for data; default: 5",
    )
    option(
        "--input-option",
        type=_input_option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of a camera or an address: an option of FFmpeg, as rtsp_transport=udp or "
        "video_size=640x480; may be repeated",
    )
    option(
        "--duration",
        type=positive_number,
        metavar="SECONDS",
        help="end after so many seconds of the stream; default: with the stream",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Options about what is printed and written."""
    option = parser.add_argument
    option(
        "--format",
        choices=("text", "json"),
        default="text",
        help="text, the default: a line per change of the label; json: an object per answer",
    )
    option(
        "--top", type=positive_int, default=5, metavar="k", help="labels of an answer; default: 5"
    )
    option("--log", type=Path, metavar="FILE", help="also write the lines of --format json here")
    option(
        "--figure",
        type=Path,
        metavar="FILE",
        help="at the end, draw latency, number of frames and memory over time from the log",
    )
    option("--overwrite", action="store_true", help="replace files of --log and --figure")
