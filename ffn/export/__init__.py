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
from ffn.export.step import export_step
from ffn.export.streams import Stream, stream

__all__ = [
    "RUNTIMES",
    "Calibration",
    "ExportError",
    "ExportReport",
    "FuseError",
    "FusionReport",
    "InferenceRunner",
    "Int8Report",
    "Stream",
    "export",
    "export_all",
    "export_step",
    "fuse",
    "register_format",
    "stream",
]


class _CallablePackage(ModuleType):
    """This package: ``ffn.export(...)`` is `export`, as ``ffn.export`` cannot name both."""

    def __call__(self, *args: Any, **kwargs: Any) -> ExportReport:
        is_stream = bool(args) and isinstance(args[0], Stream)
        return (export_step if is_stream else export)(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
