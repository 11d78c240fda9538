"""Engines compute the raw outputs of a network, and `decode` converts these to predictions."""
