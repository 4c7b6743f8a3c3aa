"""Label a camera, a stream or a file while it runs."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from ffn.cli.arguments import (
    DEFAULT_NETWORK,
    FramesOrAuto,
    Imports,
    Network,
    Weights,
    refuse_missing,
)
from ffn.files import printable
from ffn.registry import import_extensions

if TYPE_CHECKING:
    from ffn.serve import LiveAnswer, LivePredictor, SourceEvent


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
    """

    speed: PositiveFloat | None = None
    repeat: bool = False
    fps: PositiveFloat | None = None
    attempts: NonNegativeInt | None = None
    timeout: PositiveFloat = 5.0
    input_option: list[str] = field(default_factory=list)


@Parameter(name="*")
@dataclass(frozen=True)
class AnswerOptions:
    """When an answer is given, and about what.

    Args:
        window: Seconds of the stream that an answer is about; for a causal network, the length of a
            training clip: it reads as many frames in them as its largest trained count.
        step: Seconds from one answer to the next; default: half a window.
        frames: Frames of a clip; auto: by the load, up to the largest trained count.
        smooth: Time constant of averaged probabilities in seconds; 0: none.
        margin: Another label is shown if it leads by this averaged probability.
        duration: End after so many seconds of the stream; default: with the stream.
        top: Labels of an answer.
    """

    window: PositiveFloat = 2.0
    step: PositiveFloat | None = None
    frames: FramesOrAuto = "auto"
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
    network: Network = DEFAULT_NETWORK,
    imports: Imports = None,
) -> None:
    """Label a camera, a stream at an address, or a video file as if it were live.

    The number of frames follows the load of the machine; of a causal network, the frames it skips.

    Args:
        source: A camera, as 0 or /dev/video0; an address, as rtsp://host/stream; a video file or a
            folder of frames.
        format: text: a line per change of the label or the number of frames; json: an object per
            answer.
    """
    if not source.isdecimal():  # as a camera is
        refuse_missing(source)
    import_extensions(imports or [])

    from ffn.serve import LivePredictor, open_source

    predictor = network.build_predictor(weights)
    predictor.record.require_classes("ffn live")
    given = asdict(reading) | {"pattern": predictor.pattern}
    given["options"] = dict(map(_key_value, given.pop("input_option")))
    opened = open_source(source, **given)
    output = _Output(answers.top, is_json=format == "json")
    stream = LivePredictor(
        predictor,
        opened,
        answers.window,
        step=answers.step,
        frames=None if answers.frames == "auto" else answers.frames,
        smooth=answers.smooth,
        margin=answers.margin,
        on_event=output.add_event,
    )
    with closing(stream):
        _write(stream, output, answers.duration)


class _Output:
    """Prints answers and events as text, or as a JSON object per line.

    Args:
        labels: Number of labels in an answer.
        is_json: JSON lines in place of text.
    """

    def __init__(self, labels: int, *, is_json: bool) -> None:
        self._labels, self._is_json = labels, is_json
        self._frames = 0  # of the answer before

    def add(self, answer: LiveAnswer) -> None:
        """Write an answer; as text, only if the labels or the number of frames change."""
        if self._is_json:
            self._line(json.dumps(answer.to_dict(self._labels)))
        elif answer.changed or answer.prediction.frames != self._frames:
            labels = answer.labels[: self._labels] or [("no label", float(answer.smoothed.max()))]
            shown = ", ".join(f"{label}  {probability:.0%}" for label, probability in labels)
            frames = f"{answer.prediction.frames} frames, {answer.latency_ms:.0f} ms"
            self._line(f"{_time(answer.time)}  {shown}  ({frames})")
        self._frames = answer.prediction.frames

    def add_event(self, event: SourceEvent) -> None:
        """Write a change of the state of the source."""
        if self._is_json:
            values = {"event": event.state, "message": event.message}
            self._line(json.dumps(values | {"attempt": event.attempt, "wait": event.wait}))
        else:
            then = "" if event.wait is None else f"; connecting again in {event.wait:g} s"
            self._line(f"{event.state}: {event.message}{then}")

    def _line(self, text: str) -> None:
        print(printable(text), flush=True)


def _write(stream: LivePredictor, output: _Output, duration: float | None) -> None:
    """Write the answers until the stream, or the duration, ends; then a line about all."""
    answer = None
    try:
        for answer in stream:
            output.add(answer)
            if duration is not None and answer.prediction.end >= duration:
                break
    finally:
        if answer is not None:
            print(
                f"ffn live: {answer.prediction.end:.1f} s, {answer.received:,} frames, "
                f"{answer.dropped:,} of them dropped; {answer.skipped:,} answers skipped",
                file=sys.stderr,
            )


def _time(seconds: float) -> str:
    """Hours, minutes and seconds: 3725.5 is 1:02:05.5."""
    minutes, rest = divmod(round(seconds, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}"


def _key_value(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise ValueError(f"--input-option is {text}; expected KEY=VALUE, as rtsp_transport=udp")
    return key, value
