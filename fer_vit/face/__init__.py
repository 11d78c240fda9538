"""Faces in images: regions, crops, detection, image files. NumPy, OpenCV and Pillow, no torch."""
