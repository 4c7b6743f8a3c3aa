"""What an exported file states about itself, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffn.version import __version__

# Index of frame i of T in a video of n frames, as Python expressions; the rules of ffn.data.
SAMPLING = {
    "segment": "int(n / T / 2 + n / T * i)",
    "interval": "round((n - 1) / T * i) + int((n - 1) / T / 2)",
    "dense": "int(n / T / 2 + n / T * i) if n < 64 else (n - 64) // 2 + 64 // T * i",
}


def describe(
    record: Mapping[str, Any],
    *,
    frames: int,
    any_frames: bool,
    active: int | None,
    preprocess: bool,
) -> dict[str, Any]:
    """Describe an exported sub-network.

    Args:
        record: of the weights, as ``WeightRecord.to_dict`` returns it; may be empty.
        frames: T.
        any_frames: the file takes clips of any T.
        active: trained count of the sub-network; None for a plain network.
        preprocess: the file contains the preprocessing.
    """
    described: dict[str, Any] = {"ffn": __version__}
    copied = ("model", "classes", "multi_label", "licence", "source", "trained_frames")
    described |= {key: record[key] for key in copied if key in record}
    weights = {key: record[key] for key in ("name", "sha256") if key in record}
    described |= {"weights": weights} if weights else {}
    described |= {"frames": frames, "any_frames": any_frames}
    described |= {"sub_network": active} if active else {}

    preprocessing = dict(record.get("preprocessing", {}))
    rule = preprocessing.pop("sampling", None)
    if rule is not None:
        described["sampling"] = {"rule": rule, "index": SAMPLING[rule]}
    if preprocessing:
        described["preprocessing"] = {**preprocessing, "inside": preprocess}
    return described
