"""The verb `app`: a page in the browser that predicts and explains."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fer_vit.app.jobs import Jobs, model_named
from fer_vit.errors import FerVitError, check_number
from fer_vit.report.live import HERE
from fer_vit.store.hub import DEFAULT, shipped_models


def app(*, checkpoint: str | None = None, host: str = "localhost", port: int = 7860) -> None:
    """Serves a page in the browser: drop photos and clips or use the camera, see the faces, what they express, and why.

    It shows the report of `fer-vit visualize`, and offers it and the table of `fer-vit predict` to download. Photos
    stay on this machine; the first request after an hour removes them, or the end of the program. Ctrl-C ends it.

    Examples:
        fer-vit app

        fer-vit app --checkpoint best.ckpt --port 8000

        fer-vit app --host 0.0.0.0

    Args:
        checkpoint: A model to choose on the page besides those that are shipped: a checkpoint of `fer-vit fit`, a
            folder of `fer-vit export`, or "user/name" on the Hugging Face hub.
        host: The address to listen at. With "0.0.0.0" every machine that reaches this one can use the page.
        port: The port to listen at; 0 takes a free one.
    """
    check_number("port", port, 0, 65535)
    models = list(dict.fromkeys([checkpoint or DEFAULT, *shipped_models()]))
    with TemporaryDirectory(prefix="fer-vit-") as folder, suppress(KeyboardInterrupt):
        jobs = Jobs(Path(folder, "uploads"), Path(folder, "results"))
        jobs.uploads.mkdir()
        jobs.results.mkdir()
        # Read when Gradio is imported
        os.environ |= {"GRADIO_TEMP_DIR": str(jobs.uploads), "GRADIO_ANALYTICS_ENABLED": "False"}
        from fer_vit.app.page import build_page, serve

        # Before the first visitor: the model and the detector are loaded, or there is an error
        model_named(models[0]).predict(np.zeros((64, 64, 3), np.uint8), workers=0)
        try:
            server = socket.create_server((host, port))
        except OSError as error:
            raise FerVitError(
                f"Cannot listen at {host}:{port} ({error}). Choose another `--host` or `--port`."
            ) from error
        address = f"{host}:{server.getsockname()[1]}"
        if host not in HERE:
            print(f"fer-vit: warning: anyone who reaches {address} can use this page, unencrypted", file=sys.stderr)
        print(f"Open http://{address} (Ctrl-C ends it)", flush=True)
        serve(build_page(jobs, models), jobs, server)
