"""``tools/test.py CONFIG --weights W --frames 2 4 …``: accuracy and cost at any frame counts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffn.cli.arguments import positive_int


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, test each network, show and write the tables; returns the exit status."""
    given = _parser().parse_intermixed_args(arguments)

    from ffn.engine.config import ConfigError, load_config

    try:
        config = load_config(given.config, given.options)
    except ConfigError as error:
        print(f"test.py: {error}", file=sys.stderr)
        return 2

    from ffn.cli.failures import failures
    from ffn.data import Preprocessing
    from ffn.engine.build import build_test_loader, clips_per_forward
    from ffn.engine.distributed import processes
    from ffn.engine.videos import read_videos
    from ffn.evaluation import print_table, save_predictions, save_table, sweep
    from ffn.zoo import load_with_record

    frames = given.frames or config.data.test_frames
    output = Path(given.output or Path(config.log.output) / "test")
    sweeps = []
    try:
        with processes() as world:
            for weights in given.weights:
                model, record = load_with_record(weights, device=world.device)
                videos = read_videos(config.data, train=False, classes=record.classes)
                preprocessing = Preprocessing.from_dict(record.preprocessing)
                loader = build_test_loader(
                    config,
                    videos,
                    world,
                    frames=frames,
                    preprocessing=preprocessing,
                    protocol=given.protocol,
                )
                result = sweep(
                    model,
                    loader,
                    name=_name(weights, record.name),
                    trained_frames=_trained_frames(record.config),
                    precision=given.precision,
                    latency=not given.no_latency,
                    keep_logits=given.save_predictions,
                    batch_size=clips_per_forward(config, world),
                    progress=True,
                )
                sweeps.append(result)
                if given.save_predictions and world.is_main:
                    name = result.name.replace("/", "_")
                    print(save_predictions(result, output / f"{name}.predictions.safetensors"))
            if world.is_main:
                print_table(sweeps)
                for file in save_table(sweeps, output):
                    print(file)
    except failures() as error:
        print(f"test.py: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="test.py",
        description="Test networks at any frame counts, alone or under torchrun: accuracy, the "
        "sub-network that answered, multiply-accumulates, parameters, latency; on screen, as CSV, "
        "JSON and figure.",
    )
    parser.add_argument("config", help="yaml file; its data section says which videos")
    parser.add_argument("options", nargs="*", metavar="key=value", help="overrides of the config")
    parser.add_argument(
        "--weights", nargs="+", required=True, help="names of the zoo, .pt or .safetensors files"
    )
    parser.add_argument(
        "--frames", nargs="+", type=positive_int, metavar="T", help="default: data.test_frames"
    )
    parser.add_argument(
        "--protocol",
        metavar="CLIPSxCROPS",
        help="clips x crops per video, as 1x1, 1x3, 2x3 or 10x3; default: data.test_protocol",
    )
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--no-latency", action="store_true", help="do not measure latency")
    parser.add_argument(
        "--save-predictions",
        action="store_true",
        help="also write every video's logits, as safetensors",
    )
    parser.add_argument("--output", help="folder of the results; default: test/ in log.output")
    return parser


def _name(weights: str, name: str) -> str:
    """The name of the weights; a checkpoint, which has none, is its run and file: "run/best"."""
    path = Path(weights)
    return f"{path.resolve().parent.name}/{path.stem}" if path.suffix == ".pt" else name


def _trained_frames(config: dict[str, Any] | None) -> list[int] | None:
    """What a network was trained at, by the config of its training run."""
    return config["task"]["frames"] if config else None
