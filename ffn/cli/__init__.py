"""The commands: ``ffn train``, ``ffn test``, … and, from a checkout, ``tools/*.py``."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "train": "train a network from a config",
    "plot_log": "curves of training runs in one picture",
    "test": "accuracy and cost at any frame counts",
    "predict": "label video files",
    "prepare_data": "official lists and files of a data set become an index",
    "check_data": "decode the videos of a list, report the bad ones",
    "pack": "pack the videos of a config for fast training",
    "convert_checkpoint": "turn a foreign checkpoint into weights of ffn",
    "export": "export a network as a file of torch.export",
    "publish": "write a trained network as one file with its record",
    "summarise": "mean and spread over the seeds of a run",
    "zoo": "list weights, or models and their cost",
    "benchmark": "throughput and memory as ratios from one run",
}


def main() -> int:
    """Run the command that the first argument names; returns the exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    name = name.replace("-", "_")
    if name not in COMMANDS:
        wide = max(map(len, COMMANDS))
        print("usage: ffn COMMAND …\n")
        for command, meaning in COMMANDS.items():
            print(f"  {command:<{wide}}  {meaning}")
        print("\nffn COMMAND --help tells more.")
        return 0 if name in ("__help", "_h") else 2
    return importlib.import_module(f"ffn.cli.{name}").main(arguments)
