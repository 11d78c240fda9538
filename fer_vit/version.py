"""The version of fer-vit."""

__version__ = "0.2.0.dev0"
