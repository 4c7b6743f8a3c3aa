"""Export networks to files that run without ffn: ``ffn.export`` and the registry of formats."""

from ffn.export import onnx_format  # noqa: F401  registers the format
from ffn.export.exporter import ExportReport, export
from ffn.export.folder import FolderReport, export_all
from ffn.export.formats import ExportError, register_format

__all__ = [
    "ExportError",
    "ExportReport",
    "FolderReport",
    "export",
    "export_all",
    "register_format",
]
