"""Networks for inference: ``ffn.fuse``, and ``ffn.export`` to files that run without ffn."""

from ffn.export.exporter import ExportError, ExportReport, export
from ffn.export.formats import register_format
from ffn.export.fuse import FuseError, FusionReport, fuse

__all__ = [
    "ExportError",
    "ExportReport",
    "FuseError",
    "FusionReport",
    "export",
    "fuse",
    "register_format",
]
