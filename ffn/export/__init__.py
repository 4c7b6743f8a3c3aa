"""Export networks to files that run without ffn: ``ffn.export`` and the registry of formats."""

from ffn.export import aotinductor  # noqa: F401  registers the format
from ffn.export.exporter import ExportReport, export
from ffn.export.folder import FolderReport, export_all
from ffn.export.formats import ExportError, register_format
from ffn.export.int8 import Calibration, Int8Report

__all__ = [
    "Calibration",
    "ExportError",
    "ExportReport",
    "FolderReport",
    "Int8Report",
    "export",
    "export_all",
    "register_format",
]
