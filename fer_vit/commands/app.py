"""The command `app`: a page in the browser that predicts and explains faces, and an API."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from fer_vit.commands import HostOptions
from fer_vit.engine.choice import PRECISION_HELP, Precision
from fer_vit.files import clear_remains_of, scratch_folder
from fer_vit.options import Port, takes
from fer_vit.processes import start_worker
from fer_vit.store.hub import DEFAULT_MODEL, shipped_models


@dataclass(frozen=True)
class AppOptions(HostOptions):
    """Options of `app`."""

    TEXTS: ClassVar = {"PRECISION": PRECISION_HELP}

    _: KW_ONLY
    checkpoint: str | None = None
    """A model to offer besides the shipped ones, as for `predict`."""
    port: Port = 7860
    """The port of the page; 0 selects a free port."""
    precision: Precision = "float32"
    """{PRECISION} With PyTorch, explanations use float32."""


@takes(AppOptions)
def app(options: AppOptions) -> None:
    """Serves a page for the browser, and an API, that predict and explain faces.

    Open photos, clips or the camera, and download the report and the table. Photos stay on this
    machine until the page closes, at most an hour. To end the server, press Ctrl-C.

    Examples:
        fer-vit app

        fer-vit app --checkpoint best.ckpt --port 8000

        fer-vit app --host 0.0.0.0 --hostnames lab.example.org

        fer-vit app --public https://lab.example.org/fer/
    """
    # not at the top: the help needs no server
    from fer_vit.app.guard import public_address, refuse_network
    from fer_vit.app.jobs import Jobs, Worker
    from fer_vit.app.server import built_page, create_app, serving

    behind_proxy = public_address(options.public) if options.public else None
    # the first model is the default on the page; each model once
    models = list(dict.fromkeys([options.checkpoint or DEFAULT_MODEL, *shipped_models()]))
    # the photos are in a hidden folder beside this path, which only this user may enter
    stem = Path(tempfile.gettempdir()) / "fer-vit-app"
    clear_remains_of(stem)  # folders that killed servers have left
    with scratch_folder(stem) as folder:
        listener, address = options.listen()
        target = partial(run_worker, precision=options.precision)
        with listener, closing(Worker(models, target)) as worker:
            ready = worker.wait()
            # From here on, this process may not open connections. A hook cannot be removed.
            sys.addaudithook(refuse_network)
            jobs = Jobs(folder, models, worker, ready)
            asgi_app = create_app(jobs, options.names, behind_proxy, built_page())
            with suppress(KeyboardInterrupt), serving(asgi_app, listener) as thread:
                # From here on, Ctrl-C ends the server with the status 0.
                print(f"Open {address} (Ctrl-C ends it)", flush=True)
                while thread.is_alive():
                    thread.join(1)  # Windows ignores Ctrl-C in a wait without a timeout


def run_worker(pipe: Connection, models: Sequence[str], precision: Precision) -> None:
    """Runs the worker process of the server. Only this process loads models."""
    # First, because the import takes seconds, and Ctrl-C in a terminal also reaches this process.
    start_worker()
    from fer_vit.app import tasks

    tasks.work(pipe, models, precision)
