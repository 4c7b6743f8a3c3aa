"""How well heat maps find the moving object of generated videos, and what they cost.

``python tests/heat_map_quality.py`` writes the tables in docs/heat_maps.md. The object, a
dart, is where `ffn.datasets.motions` drew it. A share is that of the heat map's sum that lies on
the dart or within two pixels of it. The share of a map of equal values is what chance gives.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ffn
from ffn.data import EvalTransform, Normalize
from ffn.datasets import motions
from ffn.export import Networks
from ffn.labels import SingleLabel
from ffn.serve import HeatMap, Predictor
from ffn.serve.clips import Clip
from ffn.serve.heat_maps import HeatMaps
from ffn.zoo import create_model
from ffn.zoo.load import model_from_record

PAGE = Path(__file__).resolve().parents[1] / "docs/heat_maps.md"
WEIGHTS = "tsm_tiny.motion_f4_8_16"
LAYERS = (None, "net.layer3", "net.layer2")
FRAMES = 16
SIZE, LENGTH = 28, 40  # of a video, pixels and frames
NEAR = 2  # pixels
QUALITY = (
    "| layer | positions per frame | on the dart | on the decoy | chance | videos above chance | "
    "random weights, on the dart | correlation with random weights | without evidence |"
)
COSTS = "| network | clip | prediction | first heat map | heat map | heat map / prediction |"


@dataclass(frozen=True)
class Film:
    """A generated video: its label, frames, and the parts that its two darts cover, (T, H, W)."""

    label: str
    frames: np.ndarray
    dart: np.ndarray
    decoy: np.ndarray


def film(label: str, number: int) -> Film:
    """The video of a class and number, none of those in the data set, and where its darts are."""
    seed = [2, motions.CLASSES.index(label), number]
    covers: list[np.ndarray] = []
    original = motions._dart

    def record(*given: object) -> np.ndarray:
        covers.append(original(*given))
        return covers[-1]

    motions._dart = record
    try:
        frames = motions.draw(label, size=SIZE, frames=LENGTH, rng=np.random.default_rng(seed))
    finally:
        motions._dart = original
    return Film(label, frames, *covers)


def films(count: int) -> Iterator[Film]:
    """Videos of all classes in turn."""
    for number in range(count):
        yield film(motions.CLASSES[number % len(motions.CLASSES)], number // len(motions.CLASSES))


def share(heat: HeatMap, cover: np.ndarray) -> float:
    """The share of a heat map's sum that is near a dart."""
    near = _near(heat, cover)
    return float((heat.values * near).sum() / heat.values.sum())


def chance(heat: HeatMap, cover: np.ndarray) -> float:
    """The share of a map of equal values."""
    return float(_near(heat, cover).mean())


def _near(heat: HeatMap, cover: np.ndarray) -> Tensor:
    """1 for each pixel of a clip that is near a dart, else 0, (T, H, W).

    A pixel belongs to the dart if it covers half of the pixel.
    """
    cover = cover[list(heat.clip.indices)]
    images = torch.from_numpy(np.rint(255 * cover).astype(np.uint8))[..., None].expand(
        -1, -1, -1, 3
    )
    shown = EvalTransform(heat.preprocessing)(images)[:, 0] >= 128
    return F.max_pool2d(shown.float(), 2 * NEAR + 1, 1, NEAR)


def correlation(first: HeatMap, second: HeatMap) -> float:
    """Spearman's rank correlation of two heat maps, over all pixels and frames."""
    from scipy.stats import spearmanr

    return float(spearmanr(first.values.flatten(), second.values.flatten()).statistic)


def randomized(predictor: Predictor, seed: int = 0) -> HeatMaps:
    """The heat maps of the same network with random weights."""
    torch.manual_seed(seed)
    return heat_maps(predictor, model_from_record(predictor.record).eval())


def heat_maps(predictor: Predictor, network: nn.Module, side: int | None = None) -> HeatMaps:
    """The heat maps of another network, for clips of a predictor or of ``side`` pixels."""
    preprocessing = predictor.preprocessing
    if side is not None:
        preprocessing = replace(preprocessing, crop=side, resize=side)
    return HeatMaps(
        network,
        preprocessing=preprocessing,
        classes=predictor.classes,
        labels=SingleLabel,
        device=predictor.device,
    )


def quality(count: int) -> Iterator[tuple[str, ...]]:
    """Rows of the table of quality, for so many videos and the class of each."""
    predictor = Predictor(WEIGHTS, precision="fp32")
    chosen = list(films(count))
    clips = [predictor.reader(FRAMES).read(each.frames) for each in chosen]
    random = randomized(predictor)
    for layer in LAYERS:
        found: dict[str, list[float]] = defaultdict(list)
        for each, clip in zip(chosen, clips, strict=True):
            heat = predictor.heat_map(clip, label=each.label, layer=layer)
            other = random(clip, each.label, layer)
            found["none"].append(not heat.values.any())
            if heat.values.any():
                found["dart"].append(share(heat, each.dart))
                found["decoy"].append(share(heat, each.decoy))
                found["chance"].append(chance(heat, each.dart))
                found["above"].append(found["dart"][-1] > found["chance"][-1])
            if heat.values.any() and other.values.any():
                found["random"].append(share(other, each.dart))
                found["correlation"].append(correlation(heat, other))
        grid = " x ".join(map(str, heat.grid[1:]))
        yield (
            f"`{heat.layers[0]}`" + " (default)" * (layer is None),
            grid,
            *(f"{100 * np.mean(found[key]):.1f} %" for key in ("dart", "decoy", "chance")),
            f"{100 * np.mean(found['above']):.0f} %",
            f"{100 * np.mean(found['random']):.1f} %",
            f"{np.mean(found['correlation']):.2f}",
            str(sum(found["none"])),
        )


def costs(rounds: int) -> Iterator[tuple[str, ...]]:
    """Rows of the table of times: of single clips, medians of so many calls."""
    predictor = Predictor(WEIGHTS, precision="fp32")
    big = ffn.convert(create_model("tsm_r50", num_classes=12), (4, 8, 16)).eval()
    for name, network, frames, side in (
        (WEIGHTS, predictor.model, 16, predictor.preprocessing.crop),
        ("`tsm_r50`, random weights", big, 8, 224),
    ):
        pixels = torch.randint(0, 256, (3, frames, side, side), dtype=torch.uint8)
        clip = Clip("noise", pixels, "", tuple(range(frames)), 0.0)
        heat, fused = heat_maps(predictor, network, side), Networks(network, precision="fp32")
        normalize = Normalize(predictor.preprocessing)
        with torch.inference_mode():
            prediction = _median_ms(lambda: fused(normalize(pixels[None])), rounds)  # noqa: B023
        started = time.perf_counter()
        heat(clip)
        first = 1000 * (time.perf_counter() - started)
        later = _median_ms(lambda: heat(clip), rounds)  # noqa: B023
        yield (
            name if name[0] == "`" else f"`{name}`",
            f"{frames} x {side} px",
            f"{prediction:.1f} ms",
            f"{first:.1f} ms",
            f"{later:.1f} ms",
            f"{later / prediction:.1f}",
        )


def _median_ms(call: Callable[[], object], rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return float(np.median(times))


def _write(head: str, rows: Iterable[tuple[str, ...]]) -> None:
    """Replace the rows of the table of a page that starts with a line, and print them."""
    page = PAGE.read_text(encoding="utf-8")
    before, found, after = page.partition(head)
    if not found:
        raise ValueError(f"{PAGE} has no table {head!r}")
    rule, *_ = after.lstrip("\n").splitlines()
    lines = [f"| {' | '.join(row)} |" for row in rows]
    print(head, *lines, sep="\n")
    rest = after.split("\n\n", 1)[1]
    table = "\n".join([head, rule, *lines])
    PAGE.write_text(f"{before}{table}\n\n{rest}", encoding="utf-8")


def main() -> int:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--videos", type=int, default=204, help="17 of each class")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls")
    given = parser.parse_args()
    _write(QUALITY, quality(given.videos))
    _write(COSTS, costs(given.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
