"""Networks for inference: ``ffn.fuse``, runtimes, and ``ffn.export`` to files without ffn."""

import sys
from types import ModuleType
from typing import Any

from ffn.export.exporter import ExportReport, export
from ffn.export.folder import export_all
from ffn.export.formats import ExportError, register_format
from ffn.export.fuse import FuseError, FusionReport, fuse
from ffn.export.int8 import Calibration, Int8Report
from ffn.export.runner import InferenceRunner
from ffn.export.runtimes import RUNTIMES

__all__ = [
    "RUNTIMES",
    "Calibration",
    "ExportError",
    "ExportReport",
    "FuseError",
    "FusionReport",
    "InferenceRunner",
    "Int8Report",
    "export",
    "export_all",
    "fuse",
    "register_format",
]


class _CallablePackage(ModuleType):
    """This package: ``ffn.export(...)`` is `export`, as ``ffn.export`` cannot name both."""

    def __call__(self, *args: Any, **kwargs: Any) -> ExportReport:
        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
