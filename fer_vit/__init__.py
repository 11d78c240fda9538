"""fer-vit: a Lightning-based vision transformer toolkit for facial expression recognition."""

__version__ = "0.1.0"
