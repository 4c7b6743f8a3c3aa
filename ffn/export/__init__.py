"""Networks for inference: ``ffn.fuse``, and ``ffn.export`` to files that run without ffn."""

import sys
from types import ModuleType
from typing import Any

from ffn.export import aotinductor  # noqa: F401  registers the format
from ffn.export.exporter import ExportReport, export
from ffn.export.folder import FolderReport, export_all
from ffn.export.formats import ExportError, register_format
from ffn.export.fuse import FuseError, FusionReport, fuse
from ffn.export.int8 import Calibration, Int8Report
from ffn.export.int8_networks import Int8Networks
from ffn.export.networks import Networks
from ffn.export.packing import can_pack, pack

__all__ = [
    "Calibration",
    "ExportError",
    "ExportReport",
    "FolderReport",
    "FuseError",
    "FusionReport",
    "Int8Networks",
    "Int8Report",
    "Networks",
    "can_pack",
    "export",
    "export_all",
    "fuse",
    "pack",
    "register_format",
]


class _CallablePackage(ModuleType):
    """This package: ``ffn.export(...)`` is `export`, as ``ffn.export`` cannot name both."""

    def __call__(self, *args: Any, **kwargs: Any) -> ExportReport:
        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
