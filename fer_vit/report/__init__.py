"""Draws pictures and pages from arrays, without PyTorch."""
