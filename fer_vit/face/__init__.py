"""Faces in images: geometry, regions, detection. numpy and OpenCV, no torch."""
