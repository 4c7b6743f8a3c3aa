"""Export networks to files that run without ffn: ``ffn.export`` and the registry of formats."""

from ffn.export.exporter import ExportError, ExportReport, export
from ffn.export.formats import register_format

__all__ = ["ExportError", "ExportReport", "export", "register_format"]
