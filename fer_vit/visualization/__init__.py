"""Writes reports that explain predictions: explanations of each face, and tables of means."""
