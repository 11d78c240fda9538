"""The command `app`: a page in the browser that predicts and explains, and its API."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from fer_vit.errors import check_number
from fer_vit.files import remove_stale, scratch_folder
from fer_vit.store.hub import DEFAULT, shipped_models


def app(*, checkpoint: str | None = None, host: Sequence[str] = (), port: int = 7860) -> None:
    """Serves a page for the browser that predicts and explains the faces of photos, clips and the camera.

    The page shows the report of `fer-vit visualize`; report and table (`fer-vit predict`) can be downloaded. Other
    programs can use the server's API. Photos stay on this machine; they are removed when the page closes, at the latest
    after an hour. Ctrl-C ends the server.

    Examples:
        fer-vit app

        fer-vit app --checkpoint best.ckpt --port 8000

        fer-vit app --host 0.0.0.0 lab.example.org

    Args:
        checkpoint: A model to offer on the page in addition to the shipped ones: a checkpoint of `fer-vit fit`, a
            folder of `fer-vit export`, or "user/name" on the Hugging Face hub.
        host: The address to serve (default: localhost), then host names that clients may use. With "0.0.0.0", every
            machine that reaches this one can use the page.
        port: The port of the page; 0 selects a free one.
    """
    check_number("port", port, 0, 65535)
    from fer_vit.app.guard import refuse_network  # only here: the extra may not be installed
    from fer_vit.app.jobs import Jobs, Worker
    from fer_vit.app.server import create_app, listen, serving

    models = list(dict.fromkeys([checkpoint or DEFAULT, *shipped_models()]))
    private = Path(tempfile.gettempdir()) / "fer-vit-app"
    remove_stale(private)  # of servers that were killed
    with scratch_folder(private) as folder:
        folder.chmod(0o700)
        server, address = listen(host, port)
        with server, closing(Worker(models, work)) as worker:
            worker.wait()
            print(f"Open {address} (Ctrl-C ends it)", flush=True)
            tempfile.tempdir = str(folder)  # for uploads that are still arriving
            sys.addaudithook(refuse_network)
            with (
                suppress(KeyboardInterrupt),
                serving(create_app(Jobs(folder, models, worker), host), server) as thread,
            ):
                while thread.is_alive():
                    thread.join(1)  # Windows ignores Ctrl-C in a wait without a limit


def work(pipe: Connection, models: Sequence[str]) -> None:
    """Runs the worker process of the server. Only this process imports PyTorch."""
    from fer_vit.app import tasks

    tasks.work(pipe, models)
