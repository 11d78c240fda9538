"""The command `app`: a page in the browser that predicts and explains, and its API."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from fer_vit.errors import check_number
from fer_vit.files import clear_remains_of, scratch_folder
from fer_vit.processes import start_worker
from fer_vit.store.hub import DEFAULT_MODEL, shipped_models


def app(
    *,
    checkpoint: str | None = None,
    host: Sequence[str] = (),
    hostnames: Sequence[str] = (),
    port: int = 7860,
    public: str | None = None,
) -> None:
    """Serves a page for the browser that predicts and explains faces.

    Faces are in photos, clips and before the camera. The page shows the report of `fer-vit
    visualize`; report and table (`fer-vit predict`) can be downloaded. Other programs can use the
    server's API. Photos stay on this machine; they are removed when the page closes, at the latest
    after an hour. Ctrl-C ends the server.

    Examples:
        fer-vit app

        fer-vit app --checkpoint best.ckpt --port 8000

        fer-vit app --host 0.0.0.0 --hostnames lab.example.org

        fer-vit app --public https://lab.example.org/fer/

    Args:
        checkpoint: A model to offer on the page in addition to the shipped ones: a checkpoint of
            `fer-vit fit`, a folder of `fer-vit export`, or "user/name" on the Hugging Face hub.
        host: The address to serve (default: localhost). With "0.0.0.0", every machine that reaches
            this one can use the page. Further values are `hostnames`, as in 0.1.
        hostnames: Names of this machine by which clients may request the page, besides localhost
            and its IP address. Requests by other names are refused.
        port: The port of the page; 0 selects a free one.
        public: The address of the page for its users, if a reverse proxy serves it: its browsers
            may send photos.
    """
    check_number("port", port, 0, 65535)
    # only here: the extra may not be installed
    from fer_vit.app.guard import public_address, refuse_network
    from fer_vit.app.jobs import Jobs, Worker
    from fer_vit.app.server import create_app, describe_exposure, listen, serving

    behind_proxy = public_address(public) if public else None
    names = [*host, *hostnames]
    models = list(dict.fromkeys([checkpoint or DEFAULT_MODEL, *shipped_models()]))
    private = Path(tempfile.gettempdir()) / "fer-vit-app"
    clear_remains_of(private)  # of servers that were killed
    with scratch_folder(private) as folder:
        folder.chmod(0o700)
        server, address = listen(host, port)
        warning = describe_exposure(host, address)
        if warning:
            print(f"fer-vit: warning: {warning}", file=sys.stderr)
        with server, closing(Worker(models, run_worker)) as worker:
            ready = worker.wait()
            sys.addaudithook(refuse_network)
            page = create_app(Jobs(folder, models, worker, ready), names, behind_proxy)
            with suppress(KeyboardInterrupt), serving(page, server) as thread:
                # From here on, Ctrl-C ends the server with the status 0.
                print(f"Open {address} (Ctrl-C ends it)", flush=True)
                while thread.is_alive():
                    thread.join(1)  # Windows ignores Ctrl-C in a wait without a limit


def run_worker(pipe: Connection, models: Sequence[str]) -> None:
    """Runs the worker process of the server. Only this process imports PyTorch."""
    start_worker()  # before the seconds that the import takes: Ctrl-C reaches this process, too
    from fer_vit.app import tasks

    tasks.work(pipe, models)
