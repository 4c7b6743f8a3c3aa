"""Registry of export formats by file suffix, and those of torch: ``.pt2`` and ``.aoti.pt2``.

Your own package adds a format with the same decorator::

    from ffn.export import register_format

    @register_format("ts")
    def torchscript(network, clip, file): ...

The function writes ``network``, traced with ``clip``, to an open binary file. It returns a function
that runs the written file: clip in, logits out. ``ffn.export`` compares its logits with those of
the network. ``clip`` is an example input, (B, C, T, H, W), or uint8 frames (B, T, H, W, 3) if the
network contains the preprocessing. ``network`` is a ``DeployedNetwork``: its ``dynamic_shapes`` are
the dimensions that may vary (always B), its ``metadata`` what the file should state about itself.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO

import torch
from torch import Tensor

from ffn.devices import NO_COMPILER, has_compiler
from ffn.export.deployed import DeployedNetwork
from ffn.registry import Registry

Run = Callable[[Tensor], Tensor]
Format = Callable[[DeployedNetwork, Tensor, IO[bytes]], Run]

NAMES = {"torch": "pt2", "aotinductor": "aoti.pt2"}  # of formats, besides their suffixes
LEAST_FRAMES = (1, 2, 3, 5, 9)  # tried as the smallest T: of SlowFast, alpha + 1
METADATA_FILE = "metadata.json"  # inside a .pt2

_formats: Registry[Format] = Registry("export format")


class ExportError(RuntimeError):
    """A network that a format cannot express, or a file that does not compute its logits."""


def register_format(suffix: str) -> Callable[[Format], Format]:
    """Register an export format under a file suffix without its dot, e.g. "pt2"; a decorator.

    Raises:
        ValueError: another function is registered under the suffix.
    """
    return _formats.register(suffix)


def find_format(path: Path) -> Format:
    """The format of a file: the one with the longest matching suffix.

    Raises:
        ValueError: no format has the suffix of the file.
    """
    endings = [path.name.split(".", n)[n] for n in range(1, path.name.count(".") + 1)]
    suffix = next((e for e in endings if e in _formats), path.suffix.removeprefix("."))
    try:
        return _formats[suffix]
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]}") from None


def suffix_of(name: str) -> str:
    """The suffix of a format's files, by its name or suffix, with the dot."""
    return f".{NAMES.get(name, name)}"


def trace(network: DeployedNetwork, clip: Tensor) -> torch.export.ExportedProgram:
    """Trace a network with ``torch.export``.

    If T may vary, ``network.least_frames`` becomes the smallest T that the program accepts: some
    layers run other operations for very short clips.

    Raises:
        ExportError: torch.export cannot trace it, as with a T that may vary.
    """
    try:
        program = torch.export.export(
            network, (clip,), dynamic_shapes=network.dynamic_shapes, strict=False
        )
    except Exception as error:  # of many kinds
        remedy = "; export it for one T" if network.any_frames else ""
        vary = " and ".join(d for d in network.input_shape if isinstance(d, str))
        raise ExportError(
            f"torch.export cannot trace this network if {vary} may vary{remedy}. It reports: "
            f"{error}"
        ) from error
    if network.any_frames:
        network.least_frames = _least_frames(program, network)
        network.metadata["least_frames"] = network.least_frames
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # with paths of this machine
    return program


def _least_frames(program: torch.export.ExportedProgram, network: DeployedNetwork) -> int:
    run = program.module()
    for frames in LEAST_FRAMES[:-1]:
        with suppress(AssertionError, RuntimeError):  # a guard of the program
            run(network.example(1, frames=frames))
            return frames
    return LEAST_FRAMES[-1]


def require(name: str) -> ModuleType:
    """Import a package of the extra ``onnx`` or ``openvino``.

    Raises:
        ImportError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        extra = "openvino" if name == "openvino" else "onnx"
        raise ImportError(
            f'{name} is not installed; the extra "{extra}" installs it: '
            f'pip install "frame-flexible[{extra}]"'
        ) from None


@register_format("pt2")
def pt2(network: DeployedNetwork, clip: Tensor, file: IO[bytes]) -> Run:
    """An ``ExportedProgram``; read it with ``torch.export.load(path).module()``."""
    program = trace(network, clip)  # completes the metadata
    # torch.export.save stores the example clips, which a program does not use: one zero, expanded
    # to their shape, takes the place of 10 MB.
    program.example_inputs = (clip.new_zeros(()).expand(clip.shape),), {}
    metadata = json.dumps(network.metadata)
    with warnings.catch_warnings():  # of weights in the channels-last layout; the file is compared
        warnings.filterwarnings("ignore", message="No complete tensor found")
        torch.export.save(program, file, extra_files={METADATA_FILE: metadata})
    file.seek(0)
    return torch.export.load(file).module()


@register_format("aoti.pt2")
def aotinductor(network: DeployedNetwork, clip: Tensor, file: IO[bytes]) -> Run:
    """A package for ``torch._inductor.aoti_load_package``; its metadata values are JSON."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    if not has_compiler():  # found before the minutes that a trace may take
        raise ExportError(f"{NO_COMPILER}, which AOTInductor needs too; install one")
    program = trace(network, clip)
    metadata = {key: json.dumps(value) for key, value in network.metadata.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "network.pt2")
        aoti_compile_and_package(
            program, package_path=path, inductor_configs={"aot_inductor.metadata": metadata}
        )
        file.write(Path(path).read_bytes())
        return aoti_load_package(path)
