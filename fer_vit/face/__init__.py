"""Faces in images: regions, crops, detection, image files. NumPy and OpenCV, no torch."""
