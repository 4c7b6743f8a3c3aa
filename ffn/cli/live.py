"""Label a camera, a stream or a file while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from ffn.cli.arguments import (
    Device,
    FramesOrAuto,
    Imports,
    Overwrite,
    Weights,
    find_device,
    refuse_existing,
)
from ffn.files import make_writable
from ffn.registry import import_extensions

if TYPE_CHECKING:
    from ffn.serve import LivePredictor, Predictor, SourceEvent


@Parameter(name="*")
@dataclass(frozen=True)
class SourceOptions:
    """How the source is read.

    Args:
        speed: Of a file: factor of its rate; default: 1.
        repeat: Of a file: play it again and again.
        fps: Frames per second of a folder of frames, which has no times.
        attempts: Of a camera or an address: number of attempts to connect again after an
            interruption; default: no limit.
        timeout: Of a camera or an address: seconds to connect, and to wait for data.
        input_option: Of a camera or an address: options of FFmpeg as KEY=VALUE, e.g.
            rtsp_transport=udp or video_size=640x480.
        pattern: File names in a folder of frames, e.g. img_{:05d}.jpg; default: that of the
            training.
    """

    speed: PositiveFloat | None = None
    repeat: bool = False
    fps: PositiveFloat | None = None
    attempts: NonNegativeInt | None = None
    timeout: PositiveFloat = 5.0
    input_option: list[str] = field(default_factory=list)
    pattern: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class AnswerOptions:
    """When an answer is given, and about what.

    Args:
        window: Seconds of the stream that an answer is about.
        step: Seconds from one answer to the next; default: half a window.
        frames: Frames of a clip; auto: by the load, up to the largest trained count.
        max_lag: Frames that are late by more than so many seconds are dropped.
        smooth: Time constant of averaged probabilities in seconds; 0: none.
        margin: Another label is shown if it leads by this averaged probability.
        duration: End after so many seconds of the stream; default: with the stream.
        top: Labels of an answer.
    """

    window: PositiveFloat = 2.0
    step: PositiveFloat | None = None
    frames: FramesOrAuto = "auto"
    max_lag: PositiveFloat = 1.0
    smooth: NonNegativeFloat = 1.0
    margin: NonNegativeFloat = 0.1
    duration: PositiveFloat | None = None
    top: PositiveInt = 5


def live(
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    weights: Weights,
    answers: AnswerOptions = AnswerOptions(),
    reading: SourceOptions = SourceOptions(),
    format: Literal["text", "json"] = "text",
    log: Path | None = None,
    overwrite: Overwrite = False,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    device: Device = None,
    imports: Imports = None,
) -> None:
    """Label a camera, a stream at an address, or a video file as if it were live.

    The number of frames follows the load of the machine.

    Args:
        source: A camera, as 0 or /dev/video0; an address, as rtsp://host/stream; a video file or a
            folder of frames.
        format: text: a line per change of the label; json: an object per answer.
        log: Also write the lines of `--format json` to this file.
        precision: auto: bf16 on CPUs where a measurement shows that it is faster, else fp32; half
            precision on CUDA.
    """
    if log is not None:
        refuse_existing(log, overwrite, "--log", inputs=(source, weights))
        make_writable(log.parent)
    import_extensions(imports or [])

    from ffn.serve import Predictor
    from ffn.serve.live.console import LIVE_OUTPUTS, LiveJson

    predictor = Predictor(
        weights, device=find_device(device), precision=precision, pattern=reading.pattern
    )
    outputs = [LIVE_OUTPUTS[format](sys.stdout, answers.top)]

    def add_event(event: SourceEvent) -> None:
        for output in outputs:
            output.add_event(event)

    stream = _open(predictor, source, reading, answers, add_event)
    with ExitStack() as stack:
        stack.enter_context(stream)
        if log is not None:
            outputs.append(LiveJson(stack.enter_context(log.open("w")), answers.top))
        _write(stream, outputs, answers.duration)


def _open(
    predictor: Predictor,
    source: str,
    reading: SourceOptions,
    answers: AnswerOptions,
    on_event: Callable[[SourceEvent], None],
) -> LivePredictor:
    from ffn.serve import LivePredictor, Smoothing, open_source

    given = asdict(reading) | {"pattern": predictor.pattern}
    given["options"] = dict(map(_key_value, given.pop("input_option")))
    return LivePredictor(
        predictor,
        open_source(source, **given),
        answers.window,
        step=answers.step,
        frames=None if answers.frames == "auto" else answers.frames,
        smoothing=Smoothing(answers.smooth, answers.margin),
        max_lag=answers.max_lag,
        on_event=on_event,
    )


def _write(stream: LivePredictor, outputs: list, duration: float | None) -> None:
    """Write the answers until the stream, or the duration, ends; then a line about all."""
    from ffn.serve.live.console import totals

    latencies, answer = [], None
    try:
        for answer in stream:
            latencies.append(answer.latency_ms)
            for output in outputs:
                output.add(answer)
            if duration is not None and answer.prediction.end >= duration:
                break
    finally:
        outputs[0].close()
        if answer is not None:
            print(f"ffn live: {totals(answer, latencies)}", file=sys.stderr)


def _key_value(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise ValueError(f"--input-option is {text}; expected KEY=VALUE, as rtsp_transport=udp")
    return key, value
