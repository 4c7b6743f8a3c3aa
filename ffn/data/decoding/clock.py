"""Ascending times of the frames of a file whose clock restarts, stands still or is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import av

# Seconds; in a format whose clock may jump, a longer gap is a jump, unless all are as long.
LONGEST_GAP = 10


def may_jump(format: av.ContainerFormat) -> bool:
    """Whether the clock of a file of this format may jump, as in MPEG-TS and MPEG-PS."""
    from av.format import Flags

    return bool(format.flags & Flags.ts_discont.value)


def joined(
    packets: Iterable[av.Packet], format: av.ContainerFormat, time_base: Fraction
) -> Iterator[av.Packet]:
    """Packets whose times continue where the clock of the file restarts or jumps.

    In AVI and raw streams, which have no times of presentation, frames get those of decoding.

    Args:
        packets: In the order of the file, in which decoding times ascend; changed in place.
        format: Of the file.
        time_base: Unit of the times, in seconds.
    """
    from av.format import Flags

    is_raw = format.name == "avi" or format.flags & Flags.no_timestamps.value
    longest_gap = LONGEST_GAP / time_base if may_jump(format) else math.inf
    last, step, newest, offset = None, math.inf, 0, 0
    for packet in packets:
        if is_raw:
            packet.pts = packet.dts
        if packet.dts is not None:
            pts = packet.dts if packet.pts is None else packet.pts
            clock = min(packet.dts, pts)  # behind a restart, FFmpeg may continue the former
            gap = 0 if last is None else clock - last
            if gap < -step:
                offset = newest + step - pts
            elif gap > max(longest_gap, 2 * step):  # times of presentation may be there before
                offset = min(offset, newest + step - pts)
            elif gap > 0:
                step = gap
            last = clock
            packet.dts += offset
        if packet.pts is not None:
            packet.pts += offset
            newest = max(newest, packet.pts)
        yield packet


def ascending(times: Sequence[int | None], nominal_step: float) -> np.ndarray:
    """Strictly ascending times (N,) float64 of frames in presentation order.

    Times are sorted, since frames may have the times at which they are decoded. A frame without a
    time has that of the frame before. Frames with the same time are spread over the time until the
    next; all frames of a file without times therefore have the nominal step.

    Args:
        times: Of the frames.
        nominal_step: Of frames of which at most one has a time; 0 if it is unknown.
    """
    last, filled = next((time for time in times if time is not None), 0), []
    for time in times:
        last = last if time is None else time
        filled.append(last)
    distinct, first = np.unique(np.sort(filled), return_index=True)
    step = np.median(np.diff(distinct)) if len(distinct) > 1 else nominal_step
    end = distinct[-1] + (len(times) - first[-1]) * step
    return np.interp(np.arange(len(times)), [*first, len(times)], [*distinct, end])
