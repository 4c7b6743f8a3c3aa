"""The version of ffn."""

__version__ = "0.2.0"
