"""How good a model is: labelled faces, metrics, calibration."""
