"""The version of fer-vit."""

__version__ = "0.1.0"
