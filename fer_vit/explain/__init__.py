"""Explanations: recording what the model attended to, and reading it."""
