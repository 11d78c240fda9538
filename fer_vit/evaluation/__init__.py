"""Evaluation: labelled faces, metrics, calibration."""
