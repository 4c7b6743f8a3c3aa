"""The version of ffn."""

__version__ = "1.0.0"
