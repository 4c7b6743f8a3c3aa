"""An answer of live prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ffn.serve.prediction import Prediction


@dataclass(frozen=True)
class LiveAnswer:
    """What a network says about the last seconds of a stream.

    Attributes:
        prediction: Of the window, with its probabilities as they are; ``frames``, ``active`` and
            ``why`` say how many frames, which sub-network and for what reason; ``indices`` counts
            the frames of the stream; ``start`` and ``end`` are seconds of the stream;
            ``decode_ms`` is without the decoding, which the reading thread does.
        smoothed: Averaged probabilities (K,), see :class:`ffn.serve.live.smoothing.SteadyLabels`.
        shown: Indices of the classes to show: one, or any number with several labels per video.
        changed: Whether `shown` differs from that of the answer before.
        time: Of the newest frame, in seconds after the first frame of the stream.
        latency_ms: From the capture of the newest frame to the answer. The capture is the time at
            which a frame of a file is due; for streams see
            :class:`ffn.serve.live.sources.StreamSource`.
        taken_ms: Time of this answer.
        interval_ms: Time from one answer to the next, at the rate of the window.
        received: Frames so far.
        dropped: Frames so far that were late, or exceeded the size of the memory.
        skipped: Answers so far that were due while the network was busy, and were not given.
        connections: Of a camera or an address so far.
        kept_bytes: Size of the frames in memory.
    """

    prediction: Prediction
    smoothed: Tensor
    shown: tuple[int, ...]
    changed: bool
    time: float
    latency_ms: float
    taken_ms: float
    interval_ms: float
    received: int
    dropped: int
    skipped: int
    connections: int
    kept_bytes: int

    @property
    def labels(self) -> list[tuple[str, float]]:
        """The labels to show, with their averaged probabilities."""
        classes = self.prediction.classes
        return [(classes[k], float(self.smoothed[k])) for k in self.shown]

    def to_dict(self, k: int = 5) -> dict[str, Any]:
        """The answer as JSON values, with the k most probable labels before averaging."""
        found = self.prediction.to_dict(k)
        interval = round(self.interval_ms, 3) if math.isfinite(self.interval_ms) else None
        return {
            "time": round(self.time, 6),
            "start": round(self.prediction.start, 6),
            "end": round(self.prediction.end, 6),
            "shown": [{"label": label, "probability": p} for label, p in self.labels],
            "changed": self.changed,
            "labels": found["labels"],
            "frames": found["frames"],
            "sub_network": found["sub_network"],
            "network": found["network"],
            "why": found["why"],
            "latency_ms": round(self.latency_ms, 3),
            "taken_ms": round(self.taken_ms, 3),
            "interval_ms": interval,
            "received": self.received,
            "dropped": self.dropped,
            "skipped": self.skipped,
            "connections": self.connections,
            "kept_bytes": self.kept_bytes,
        }
