"""Registry of export formats by file suffix, and the format ``.pt2`` of ``torch.export``.

Your own package adds a format with the same decorator::

    from ffn.export import register_format

    @register_format("onnx")
    def onnx(network, clip, file): ...

The function writes ``network``, traced with ``clip`` (B, C, T, H, W), to an open binary file. It
returns a function that runs the written file: clip in, logits out. ``ffn.export`` compares its
logits with those of the network. B may vary in the exported network; T, H and W are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from ffn.registry import Registry

Run = Callable[[Tensor], Tensor]
Format = Callable[[nn.Module, Tensor, IO[bytes]], Run]

_formats: Registry[Format] = Registry("export format")


def register_format(suffix: str) -> Callable[[Format], Format]:
    """Register an export format under a file suffix without its dot, e.g. "pt2"; a decorator.

    Raises:
        ValueError: another function is registered under the suffix.
    """
    return _formats.register(suffix)


def format_of(path: Path) -> Format:
    """The format of a file, by its suffix.

    Raises:
        ValueError: no format has this suffix.
    """
    try:
        return _formats[path.suffix.removeprefix(".")]
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]}") from None


@register_format("pt2")
def pt2(network: nn.Module, clip: Tensor, file: IO[bytes]) -> Run:
    """An ``ExportedProgram``; read it with ``torch.export.load(path).module()``."""
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(network, (clip,), dynamic_shapes=({0: batch},), strict=False)
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()
