"""Argument types and options that several commands share."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.limits import CLIP_FRAMES
from ffn.registry import import_extensions

if TYPE_CHECKING:
    import torch

# Of ``--weights``: all that ffn.zoo.read takes.
WEIGHTS_HELP = "name in the zoo, a .pt or .safetensors file, or hf://user/name"


def positive_int(text: str) -> int:
    """An integer of 1 or more, as ``type=`` of an argparse option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 1 or more")
    return int(text)


def frame_count(text: str) -> int:
    """A number of frames of a clip, as ``type=`` of an argparse option; `CLIP_FRAMES` at most."""
    frames = positive_int(text)
    if refusal := CLIP_FRAMES.refusal(frames):
        raise argparse.ArgumentTypeError(refusal)
    return frames


def non_negative_int(text: str) -> int:
    """An integer of 0 or more, as ``type=`` of an argparse option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more")
    return int(text)


def positive_number(text: str) -> float:
    """A finite number above 0, as ``type=`` of an argparse option."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def non_negative_number(text: str) -> float:
    """A finite number of 0 or more, as ``type=`` of an argparse option."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def frames_or_auto(text: str) -> int | str:
    """A number of frames of 1 or more, or "auto", as ``type=`` of an argparse option."""
    try:
        return text if text == "auto" else frame_count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}, nor "auto"') from None


def frames_auto_or_cascade(text: str) -> int | str:
    """A number of frames of 1 or more, "auto" or "cascade", as ``type=`` of an argparse option."""
    try:
        return text if text == "cascade" else frames_or_auto(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}, nor "cascade"') from None


def add_overrides_argument(parser: argparse.ArgumentParser) -> None:
    """Add the ``key=value`` options of a config, for ``Parser.parse_with_overrides``."""
    parser.add_argument(
        "options", nargs="*", metavar="key=value", help="options that override the config"
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``; :func:`find_device` returns the device."""
    parser.add_argument(
        "--device", help="auto, cpu, cuda, cuda:1, …; default: auto, which is cuda if available"
    )


def find_device(name: str | None, kinds: Collection[str] = ("cpu", "cuda", "mps")) -> torch.device:
    """The device of ``--device``.

    Args:
        name: None and "auto" are CUDA if there is one, else the CPU.
        kinds: that the command can use.

    Raises:
        ValueError: there is no such device.
    """
    import torch

    from ffn.devices import check_device

    if name in (None, "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return check_device(name, "--device", kinds)


def add_precision_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--precision`` of a predictor."""
    parser.add_argument(
        "--precision",
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
        help="auto, the default: bf16 on CPUs where it is faster by a measurement, else fp32; half "
        "precision on CUDA",
    )


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how the network of a predictor runs, and ``--pattern``."""
    option = parser.add_argument
    option(
        "--pattern",
        metavar="NAME",
        help="file names in a folder of frames, e.g. img_{:05d}.jpg; default: data.frame_pattern "
        "of the training, else {:05d}.jpg",
    )
    add_precision_argument(parser)
    option("--no-fuse", action="store_true", help="run the network as it was trained")
    option("--compile", action="store_true", help="compile it; worth it for many files")
    text = "launch the kernels of a forward pass together; faster for single clips on CUDA"
    option("--cuda-graphs", action="store_true", help=text)


def refuse_existing(
    path: Path, overwrite: bool, option: str = "--output", *, inputs: Iterable[str | Path] = ()
) -> None:
    """Raise FileExistsError for a file that exists, unless it is to be overwritten.

    What the command reads (`inputs`) is never overwritten.
    """
    if not path.exists():
        return
    if not overwrite:
        raise FileExistsError(f"{path} exists; choose another {option}, or add --overwrite")
    if any(os.path.exists(one) and os.path.samefile(one, path) for one in inputs):
        raise FileExistsError(f"{path} is what the command reads; choose another {option}")


def add_imports_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--imports``; :func:`load_imports` imports the packages."""
    parser.add_argument(
        "--imports",
        nargs="+",
        default=[],
        metavar="PACKAGE",
        help="your own packages that register models, tasks, data sets or export formats",
    )


def load_imports(given: argparse.Namespace) -> None:
    """Import the packages that ``--imports`` names.

    Raises:
        ffn.registry.ExtensionError: a package cannot be imported.
    """
    import_extensions(given.imports)


def names_of(weights: Sequence[str]) -> dict[str, str]:
    """Return a name for each of the weights, in their order; names differ.

    A checkpoint is named by its run and file, e.g. "run/best", a safetensors file by its file
    name; where two names would be equal, they start with the folders above too.

    Raises:
        ValueError: the same weights twice.
    """
    if len(set(weights)) < len(weights):
        twice = next(one for one in weights if weights.count(one) > 1)
        raise ValueError(f"--weights has {twice} twice; give each network once")
    names, depth = {one: _name(one, 0) for one in weights}, 0
    while len(set(names.values())) < len(names):
        equal = [one for one in names if list(names.values()).count(names[one]) > 1]
        depth += 1
        longer = {one: _name(one, depth) for one in equal}
        if all(longer[one] == names[one] for one in equal):
            raise ValueError(f"--weights has one file several times: {', '.join(equal)}")
        names |= longer
    return names


def _name(weights: str, depth: int) -> str:
    """Name of one network with ``depth`` more folders than its shortest name has."""
    if not weights.endswith((".pt", ".safetensors")):
        return weights
    path = Path(weights).resolve().with_suffix("")
    return "/".join(path.parts[1:][-(depth + 1 + weights.endswith(".pt")) :])
