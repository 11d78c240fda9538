"""The web server: the upload page with its API, and the camera page.

A request parameter is never used as a path.
"""
