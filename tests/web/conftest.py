"""The page that computes in the browser, built and served."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers.servers import ROOT

WEB = ROOT / "web"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder, with the headers that give networks threads."""

    isolated = False

    def log_message(self, format: str, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        if self.isolated:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


class IsolatedHandler(QuietHandler):
    isolated = True


@contextmanager
def served(folder: Path, isolated: bool = False) -> Iterator[str]:
    """Serves a folder at an address on this computer."""
    handler = partial(IsolatedHandler if isolated else QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page with the default model."""
    if shutil.which("node") is None:
        pytest.skip("no Node is here: install nodejs")
    if not (WEB / "node_modules").is_dir():
        pytest.skip("the packages of the page are missing: npm ci --prefix web")
    from web.facts import DEFAULT_MODEL, write

    if not (DEFAULT_MODEL / "model.onnx").is_file():
        pytest.skip("the default model has no model.onnx")
    folder = tmp_path_factory.mktemp("web")
    write(folder / "model")
    subprocess.run(["node", WEB / "build.mjs", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with served(site, isolated=True) as address:
        yield address
