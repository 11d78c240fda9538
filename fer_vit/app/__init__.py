"""The web server: the upload page and its API, the camera page. No request parameter is ever a path."""
