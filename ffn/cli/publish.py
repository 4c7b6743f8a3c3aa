"""``tools/publish.py CHECKPOINT NAME``: write a trained network and its record for release."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ffn.cli.arguments import add_imports_argument, load_imports


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="publish.py",
        description="Write a training checkpoint as NAME.safetensors and its record NAME.yaml "
        "(model, classes, preprocessing, metrics per frame count, SHA-256) for ffn.load.",
    )
    parser.add_argument("checkpoint", help="best.pt or last.pt of a run")
    parser.add_argument("name", help="model.dataset_frames, e.g. tsm_r50.sthv1_f4_8_16")
    parser.add_argument("--output", default=".", help="folder; default: the current one")
    parser.add_argument("--results", help="results.json of tools/test.py for this checkpoint only")
    parser.add_argument("--source", default="", help="origin of the weights, in a sentence")
    parser.add_argument("--licence", default="", help="SPDX name, e.g. Apache-2.0")
    add_imports_argument(parser)
    given = parser.parse_args(arguments)

    from ffn.evaluation import load_table
    from ffn.zoo import WeightsError, load_with_record, save_weights

    try:
        load_imports(given)
        model, record = load_with_record(given.checkpoint)
        metrics = record.metrics
        if given.results:
            sweeps = load_table(given.results)
            if len(sweeps) != 1:
                raise ValueError(f"{given.results} holds {len(sweeps)} networks; expected one")
            metrics = {
                row.frames: {
                    "top1": round(row.top1, 2),
                    "top5": round(row.top5, 2),
                    "mean_class": round(row.mean_class, 2),
                }
                for row in sweeps[0].rows
            }
        meta = record.to_dict() | {
            "name": given.name,
            "metrics": metrics,
            "origin": "measured" if metrics else None,
            "source": given.source,
            "licence": given.licence,
        }
        path = Path(given.output) / f"{given.name}.safetensors"
        written = save_weights(model, path, meta)
    except (ValueError, OSError, ImportError, WeightsError) as error:
        print(f"publish.py: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {written.size / 1e6:.2f} MB, SHA-256 {written.sha256}")
    return 0
