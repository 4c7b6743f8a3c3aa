"""Types of arguments that several commands share, with their help and their checks.

Nothing here imports torch: files, names and numbers are checked before it is loaded.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from ffn.cli.configs import find_config
from ffn.files import shipped
from ffn.limits import CLIP_FRAMES

if TYPE_CHECKING:
    import torch

    from ffn.engine.options import Config
    from ffn.serve import Predictor


def _each(value: Any) -> Sequence[Any]:
    """The elements of an argument that is one value, several or None."""
    return value if isinstance(value, (list, tuple)) else [] if value is None else [value]


def _check_frames(_: Any, value: Any) -> None:
    for frames in _each(value):
        if frames in ("auto", "early_exit"):
            continue
        if frames < 1:
            raise ValueError("A clip has at least 1 frame.")
        if refusal := CLIP_FRAMES.refusal(frames):
            raise ValueError(f"{refusal}.")


def _check_weights(_: Any, value: Any) -> None:
    for weights in _each(value):
        if "://" in weights:
            continue
        if weights.endswith((".pt", ".safetensors")) or "/" in weights:
            if not os.path.exists(weights):
                raise ValueError(f"There is no file {weights}.")
            continue
        names = [path.stem for path in shipped("model_zoo/weights").glob("*.yaml")]
        if weights not in names and not os.path.exists(weights):
            close = ", ".join(difflib.get_close_matches(weights, names, n=3))
            hint = f"Did you mean {close}?" if close else "`ffn zoo list` lists all."
            raise ValueError(
                f"No such weights in the zoo. {hint} A file ends in .pt or .safetensors."
            )


def _check_override(_: Any, value: Any) -> None:
    for text in _each(value):
        if "=" not in text:
            raise ValueError("Options of the config are given as key=value.")


ConfigFile = Annotated[
    Path,
    Parameter(
        name="CONFIG",
        converter=lambda _, tokens: find_config(tokens[0].value),
        help="YAML file, or a name that `ffn configs` lists.",
    ),
]
Override = Annotated[
    str,
    Parameter(
        name="key=value",
        validator=_check_override,
        help="Options that override the config; `ffn train --help` lists all.",
    ),
]
FrameCount = Annotated[int, Parameter(validator=_check_frames)]
FrameCounts = Annotated[Sequence[int], Parameter(validator=_check_frames)]
FramesOrAuto = Annotated[int | Literal["auto"], Parameter(validator=_check_frames)]
_WEIGHTS = Parameter(
    validator=_check_weights,
    help="Name in the zoo, .pt or .safetensors file, or hf://user/name.",
)
Weights = Annotated[str, _WEIGHTS]
ManyWeights = Annotated[list[str], _WEIGHTS]
Device = Annotated[
    str | None, Parameter(help="cpu, cuda, cuda:1, …; default: cuda if there is one.")
]
Runtime = Literal["torch", "compile", "onnxruntime", "openvino", "unfused", "auto"]
Overwrite = Annotated[bool, Parameter(help="Replace files that exist.")]
Imports = Annotated[
    list[str] | None,
    Parameter(help="Your own packages that register models, tasks, data sets or export formats."),
]


@Parameter(name="*", group=Group("How the network runs"))
@dataclass(frozen=True)
class Network:
    """How the network of a predictor runs.

    Attributes:
        device: cpu, cuda, cuda:1, …; default: cuda if there is one.
        runtime: What runs it; unfused: torch, as it was trained; auto: the fastest that is
            installed, measured once. Default: torch; for a single clip unfused, which starts
            sooner.
        precision: auto: bf16 on CPUs where it is measured to be faster, else fp32; half precision
            on CUDA.
        pattern: File names in a folder of frames, e.g. img_{:05d}.jpg; default: as in training.
    """

    device: str | None = None
    runtime: Runtime | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    pattern: str | None = None

    def build_predictor(
        self,
        weights: str,
        *,
        device: torch.device | None = None,
        early_exit: Path | None = None,
        for_one_clip: bool = False,
    ) -> Predictor:
        """The predictor that these options describe.

        Args:
            weights: name or path.
            device: in place of that of the options.
            early_exit: file of early exit.
            for_one_clip: fusing the network would take longer than it saves.
        """
        from ffn.serve import Predictor

        device = find_device(self.device) if device is None else device
        is_quick = for_one_clip and device.type == "cpu" and self.precision == "auto"
        return Predictor(
            weights,
            device=device,
            runtime=self.runtime or ("unfused" if is_quick else "torch"),
            precision=self.precision,
            pattern=self.pattern,
            early_exit=early_exit,
        )


DEFAULT_NETWORK = Network()


def read_run(
    config: Path, overrides: Sequence[str], device: str | None
) -> tuple[Config, torch.device | None]:
    """The config of a command with its overrides, and the device; None is the default.

    Raises:
        ValueError: an option or the device is not valid; ``ConfigError`` is one.
        OSError: the config cannot be read.
    """
    from ffn.engine.config import load_config

    return load_config(config, overrides), None if device is None else find_device(device)


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


def refuse_missing(*inputs: str | Path) -> None:
    """Raise FileNotFoundError if none of the inputs is a file, a folder or an address."""
    if not any("://" in str(one) or os.path.exists(one) for one in inputs):
        raise FileNotFoundError(f"{inputs[0]}: no such file or folder")


def names_of(weights: Sequence[str]) -> dict[str, str]:
    """Return a name for each of the weights, in their order; names differ.

    A checkpoint is named by its run and file, e.g. "run/best", a safetensors file by its file
    name; where two names would be equal, all start with the folders above too.

    Raises:
        ValueError: the same weights twice.
    """
    for depth in range(max(len(Path(one).resolve().parts) for one in weights)):
        names = {one: _name(one, depth) for one in weights}
        if len({*names.values()}) == len(weights):
            return names
    raise ValueError(f"--weights has a network twice: {', '.join(weights)}; give each once")


def _name(weights: str, depth: int) -> str:
    """Name of one network with ``depth`` more folders than its shortest name has."""
    if not weights.endswith((".pt", ".safetensors")):
        return weights
    path = Path(weights).resolve().with_suffix("")
    return "/".join(path.parts[1:][-(depth + 1 + weights.endswith(".pt")) :])
