"""The web server: the upload page with its API, and the camera page.

A request parameter is never used as a path.
"""

from importlib.util import find_spec

from fer_vit.extras import missing_extra

if not all(map(find_spec, ("fastapi", "python_multipart", "uvicorn"))):
    raise missing_extra("The page", "app")
