"""The web server: the upload page with its API, and the camera page.

A request parameter is never used as a path.
"""

from importlib.util import find_spec

from fer_vit.errors import FerVitError

if not all(map(find_spec, ("fastapi", "python_multipart", "uvicorn"))):
    raise FerVitError('The page needs more packages: pip install -c constraints.txt ".[app]".')
