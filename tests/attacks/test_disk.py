"""Uploads on a small disk leave room, also those that end together. Only for root."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fer_vit.app.guard import SPARE_BYTES
from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.servers import Server, running

pytestmark = pytest.mark.slow

SIZE = 90_000_000  # bytes of an upload
UPLOADS = 4
START = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
END = b"\r\n--b--\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server whose disk has room for two uploads, and for the copy of one of them."""
    size = SPARE_BYTES + int(3.5 * SIZE)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        with running(tmp_path) as server:
            yield server
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_uploads_that_end_together_leave_room(server: Server) -> None:
    before = shutil.disk_usage(server.temporary).free
    least = before
    over = threading.Event()

    def watch() -> None:
        nonlocal least
        while not over.wait(0.002):
            least = min(least, shutil.disk_usage(server.temporary).free)

    watcher = threading.Thread(target=watch)
    watcher.start()
    length = len(START) + SIZE + len(END)
    head = (
        "POST /api/predict HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}\r\n\r\n"
    )
    port = int(server.address.rpartition(":")[2])
    clients = []
    for number in range(UPLOADS):
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        clients.append(client)
        client.sendall(head.encode() + START)
        if number < 2:  # the others find too little room at once
            client.sendall(bytes(SIZE))
            free = before - (number + 1) * SIZE
            wait_until(lambda: shutil.disk_usage(server.temporary).free <= free)  # noqa: B023
    statuses = []
    for number, client in enumerate(clients):
        if number < 2:
            client.sendall(END)
        statuses.append(client.recv(4096).split()[1])
        client.close()
    over.set()
    watcher.join()
    assert statuses == [b"200", b"200", b"413", b"413"]
    assert least >= SPARE_BYTES
