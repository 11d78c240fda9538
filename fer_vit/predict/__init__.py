"""Prediction: images in, faces with their expressions out."""
