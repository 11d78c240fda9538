"""Faces in images: detection, regions, crops, image files. NumPy and OpenCV, no torch."""
