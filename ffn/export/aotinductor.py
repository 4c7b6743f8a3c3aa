"""The format ``.aoti.pt2``: compiled by AOTInductor for this kind of CPU, for Python and C++."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import IO

from torch import Tensor

from ffn.devices import NO_COMPILER, has_compiler
from ffn.export.deployed import DeployedNetwork
from ffn.export.formats import ExportError, Run, register_format, trace


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
