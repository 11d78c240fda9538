"""The server with a worker that takes orders from the test: requests, uploads and results."""

import json
import math
import shutil
import socket
import threading
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from starlette.testclient import TestClient

from fer_vit.app import guard, jobs, server, uploads
from fer_vit.app.guard import public_address, refuse_network
from fer_vit.app.jobs import Jobs
from fer_vit.app.server import LivePage, create_app, listen, serving
from fer_vit.errors import FerVitError
from fer_vit.fields import all_face_fields
from fer_vit.heads import EXPRESSION, HEADS
from fer_vit.version import __version__
from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.servers import Stub

PHOTO = {"files": ("a.jpg", b"bytes of a photo")}
PROGRESS = {"Accept": "application/x-ndjson"}
WASM = "application/wasm"
EMPTY_FORM = (
    b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n\r\n--b--\r\n'
)
"""A form with an empty file."""


@pytest.fixture
def client(queue: Jobs) -> Iterator[TestClient]:
    with TestClient(
        create_app(queue, hosts=["lab.example"]), base_url="http://localhost"
    ) as client:
        yield client


def connect(address: str, *parts: bytes, form: str, route: str = "/api/report") -> socket.socket:
    """Sends the start of a request whose body is a form; returns the connection."""
    client = socket.create_connection(
        ("127.0.0.1", int(address.rpartition(":")[2])), timeout=PATIENCE
    )
    head = (
        "POST /api/report HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\n{form}"
    )
    with suppress(ConnectionError):  # the server may refuse and close before all is sent
        client.sendall(b"".join((f"{head}\r\n\r\n".encode(), *parts)))
    return client


def test_every_response_has_the_security_headers(client: TestClient) -> None:
    for path, host in (
        ("/", "localhost"),
        ("/gone", "localhost"),
        ("/api/predict", "localhost"),
        ("/", "evil.example"),
    ):
        headers = client.get(path, headers={"host": host}).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control")]
    # with foreign scripts
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_the_page_that_computes_in_the_browser_is_linked_if_it_is_built(
    queue: Jobs, client: TestClient, tmp_path: Path
) -> None:
    meta = """<meta http-equiv="Content-Security-Policy" content="default-src 'self'">"""
    (tmp_path / "index.html").write_text(meta)
    (tmp_path / "ort.wasm").write_bytes(b"\0asm")
    built = TestClient(create_app(queue, web=tmp_path), base_url="http://localhost")
    assert '<p class="note" >To upload nothing' in built.get("/").text
    for path, kind in (("/browser/", "text/html; charset=utf-8"), ("/browser/ort.wasm", WASM)):
        headers = built.get(path).headers
        assert headers["content-type"] == kind
        assert headers["content-security-policy"] == "default-src 'self'; frame-ancestors 'self'"
        assert headers["cross-origin-embedder-policy"] == "require-corp"
        assert headers["cross-origin-opener-policy"] == "same-origin"
    assert built.get("/browser/../../etc/passwd").status_code == 404
    assert '<p class="note" hidden>To upload nothing' in client.get("/").text
    assert client.get("/browser/").status_code == 404


def test_own_names_and_pages_are_answered(client: TestClient) -> None:
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:7860", "[::1]:7860", "lab.example"):
        assert client.get("/api/models", headers={"host": host}).status_code == 200
    for headers in ({}, {"origin": "http://localhost", "sec-fetch-site": "same-origin"}):
        assert client.post("/api/predict", files=PHOTO, headers=headers).status_code == 200


HOSTS = ("evil.example", "localhost.evil.example", "a@localhost", "localhost:80:80", "")
ORIGINS = ("http://localhost:1", "http://evil.example", "null", "x://localhost", "localhost")
SITES = [{"origin": origin} for origin in ORIGINS]
SITES += [{"sec-fetch-site": site} for site in ("cross-site", "same-site")]


@pytest.mark.parametrize(
    "known", [("/live/stop", "POST"), ("/results/{name}", "DELETE")], ids=["live", "jobs"]
)
def test_foreign_hosts_and_sites_reach_no_route(queue: Jobs, known: tuple[str, str]) -> None:
    served = LivePage() if known[0] == "/live/stop" else queue
    app: Any = create_app(served)
    routes = [(route.path, method) for route in app.app.routes for method in route.methods]
    assert {("/", "GET"), ("/openapi.json", "GET"), known} < {*routes}
    for path, method in routes:
        for headers in [{"host": host} for host in HOSTS] + SITES * (method not in ("GET", "HEAD")):
            client = TestClient(app, base_url="http://localhost")
            assert client.request(method, path, headers=headers).status_code == 403


def test_a_table_as_json_and_csv(client: TestClient, worker: Stub, tmp_path: Path) -> None:
    response = client.post(
        "/api/predict", files=PHOTO, data={"model": "second", "fps": 2, "end": 9}
    )
    assert response.json() == [{"path": "a.jpg"}]
    assert worker.tasks[0][1:] == (
        ["a.jpg"],
        "second",
        "faces.json",
        False,
        {"fps": 2, "start": 0, "end": 9},
        True,
        (),
        frozenset(),
    )
    assert worker.uploads == {"a.jpg": b"bytes of a photo"}
    for kind, table in (
        ("text/csv", "faces.csv"),
        ("application/vnd.apache.parquet", "faces.parquet"),
    ):
        response = client.post("/api/predict", files=PHOTO, headers={"Accept": kind})
        assert response.headers["content-type"].startswith(kind)
        assert worker.tasks[-1].table == table
    assert [*tmp_path.iterdir()] == []


def test_a_report_is_kept_until_it_is_closed(client: TestClient, tmp_path: Path) -> None:
    done = client.post("/api/report", files=PHOTO).json()
    page = client.get(done["html"])
    assert page.text == "<p>Report</p>"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "; script-src 'sha256-" in policy
    assert "connect-src" not in policy
    assert client.get(done["zip"]).content == b"zip"
    assert not (tmp_path / done["id"] / "uploads").exists()
    assert client.post(f"/results/{done['id']}/close").status_code == 204
    assert client.get(done["html"]).status_code == 404


def test_a_report_is_kept_until_its_time_is_over(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_SECONDS", 0.01)
    done = client.post("/api/report", files=PHOTO).json()
    wait_until(lambda: not [*tmp_path.iterdir()])
    assert client.get(done["html"]).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/hostname",
        "..%2f..%2fetc/hostname",
        "/etc/hostname",
        "report/",
        "report/../faces.csv",
        "%00",
    ],
)
def test_no_request_names_a_path(client: TestClient, tmp_path: Path, path: str) -> None:
    kept = client.post("/api/report", files=PHOTO).json()["id"]
    (tmp_path / "secret").write_text("secret")
    for address in (
        f"/results/{kept}/{path}",
        f"/results/{path}/secret",
        f"/results/{path}",
        f"/{path}",
    ):
        answer = client.get(address)
        assert answer.status_code in (404, 405) or answer.text == '[{"path": "a.jpg"}]'
        assert client.delete(address).status_code in (204, 404, 405)
    assert (tmp_path / "secret").exists()
    assert client.post("/api/predict", files=PHOTO, data={"model": path}).status_code == 422


def test_uploads_get_safe_and_different_names(client: TestClient, worker: Stub) -> None:
    given = {
        "a.jpg": "a.jpg",
        "x/../A.JPG": "A (1).JPG",
        "..\\..\\.b.mp4": "b.mp4",
        "/etc/=c|d.png": "_c_d.png",
        "-rf.jpg": "rf.jpg",
        "a (1).jpg": "a (1) (1).jpg",
        "é" * 300 + ".mov": "é" * 24 + ".." + "é" * 24 + ".mov",
        "..": "photo",
    }
    files = [("files", (name, b"")) for name in given]
    assert client.post("/api/predict", files=files).status_code == 200
    assert worker.tasks[0].names == [*given.values()]
    long = {"files": ("subject" * 9 + "_take_4.jpg", b"")}
    assert client.post("/api/predict", files=long).status_code == 200
    assert worker.tasks[1].names[0].endswith("_take_4.jpg")


def is_refused(client: TestClient, status: int, part: str, files: Any = PHOTO, **data: Any) -> bool:
    """Whether a request has this status, and an error that contains `part`."""
    response = client.post("/api/predict", files=files, data=data)
    return response.status_code == status and part in str(response.json()["detail"])


def test_a_request_has_limits_of_files_and_of_fields(
    client: TestClient, worker: Stub, tmp_path: Path
) -> None:
    fields = {f"field{n}": "1" for n in range(100)}
    assert is_refused(client, 400, "files is 20", [("files", ("a.jpg", b""))] * 21)
    assert is_refused(client, 400, "1KB", model="x" * 1025)
    assert is_refused(client, 400, "", **fields)
    assert not worker.tasks
    assert [*tmp_path.iterdir()] == []


def test_fields_of_a_request_without_meaning_are_refused(
    client: TestClient, worker: Stub, tmp_path: Path
) -> None:
    assert is_refused(client, 422, "`files`", {})
    assert is_refused(client, 422, "files", {"file": ("a.jpg", b"")})
    assert is_refused(client, 422, "first, second", model="user/name")
    assert is_refused(client, 422, "end", start=5, end=5)
    for wrong in ({"fps": "nan"}, {"fps": 0}, {"start": "-1"}, {"end": "inf"}):
        assert is_refused(client, 422, "", **wrong)
    assert not worker.tasks
    assert [*tmp_path.iterdir()] == []


def test_an_image_that_the_worker_cannot_read_is_refused(
    client: TestClient, worker: Stub, tmp_path: Path
) -> None:
    assert is_refused(client, 422, "bad.jpg", {"files": ("bad.jpg", b"")})
    assert len(worker.tasks) == 1
    assert [*tmp_path.iterdir()] == []


def test_a_request_to_a_full_queue_may_be_repeated_later(
    client: TestClient, worker: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_JOBS", 0)
    answer = client.post("/api/predict", files=PHOTO)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert not worker.tasks


def test_a_request_larger_than_the_limit_is_refused(
    client: TestClient, worker: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_REQUEST_BYTES", 1000)
    assert is_refused(client, 413, "0 MB", {"files": ("a.jpg", bytes(2000))})
    assert not worker.tasks
    assert [*tmp_path.iterdir()] == []


def test_a_request_leaves_space_on_the_disk(
    client: TestClient, worker: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "SPARE_BYTES", 10**18)
    assert is_refused(client, 413, "disk")
    assert not worker.tasks
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_no_server_error(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert client.post("/api/predict", files=PHOTO).status_code == 413
    assert [*tmp_path.iterdir()] == []


def test_an_upload_of_unknown_length_stops_at_the_limit(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_REQUEST_BYTES", 300_000)
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
    parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (head, *[bytes(100_000)] * 4)]
    with connect(address, *parts, form="Transfer-Encoding: chunked") as client:
        assert b" 413 " in client.recv(4096)


def test_jobs_wait_for_their_turn_and_end_with_their_client(
    address: str, worker: Stub, tmp_path: Path
) -> None:
    worker.proceed.clear()
    clients = []
    events = []
    for state in ("running", "waiting", "waiting"):
        clients.append(
            requests.post(
                f"{address}/api/report",
                files=PHOTO,
                headers=PROGRESS,
                stream=True,
                timeout=PATIENCE,
            )
        )
        events.append(map(json.loads, clients[-1].iter_lines(chunk_size=1)))
        first = next(events[-1])
        assert first["state"] == state
        assert first.get("position", 0) == len(clients) - 1
    clients[1].close()  # while it waits
    while next(events[2]).get("position") != 1:
        pass
    clients[0].close()  # while it runs
    while next(events[2])["state"] != "running":
        pass
    assert worker.cancelled == 1
    worker.proceed.set()
    done = next(events[2])
    assert done["state"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == [done["id"]]


def test_a_job_is_closed_by_its_id_before_it_has_results(
    address: str, worker: Stub, tmp_path: Path
) -> None:
    worker.proceed.clear()
    answers = [
        requests.post(
            f"{address}/api/report", files=PHOTO, headers=PROGRESS, stream=True, timeout=PATIENCE
        )
        for _ in range(2)
    ]
    events = [map(json.loads, answer.iter_lines(chunk_size=1)) for answer in answers]
    running, waiting = (next(job) for job in events)
    assert running["state"] == "running"
    assert waiting["state"] == "waiting"

    for job in (waiting, running):
        assert requests.delete(f"{address}/results/{job['id']}").status_code == 204
    assert [event["state"] for event in events[0]] == ["cancelled"]
    assert "done" not in [event["state"] for event in events[1]]
    assert worker.cancelled == 1
    wait_until(lambda: not [*tmp_path.iterdir()])


def test_a_client_that_leaves_at_once_leaves_no_files(
    address: str, worker: Stub, tmp_path: Path
) -> None:
    worker.proceed.clear()
    for _ in range(20):
        length = f"Content-Length: {len(EMPTY_FORM)}"
        connect(address, EMPTY_FORM, form=f"{length}\r\nAccept: {PROGRESS['Accept']}").close()
    wait_until(lambda: not [*tmp_path.iterdir()])


def test_an_upload_that_is_still_stored_counts_as_a_job(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing = threading.Event()
    stored = threading.Event()
    copy = shutil.copyfileobj

    def wait(*files: Any) -> None:
        if not storing.is_set():  # the first of the two uploads
            storing.set()
            stored.wait(PATIENCE)
        copy(*files)

    monkeypatch.setattr(jobs, "MAX_JOBS", 1)
    monkeypatch.setattr(shutil, "copyfileobj", wait)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/api/predict", files=PHOTO)
        assert storing.wait(PATIENCE)
        second = client.post("/api/predict", files=PHOTO)
        stored.set()
        assert first.result().status_code == 200
    assert second.status_code == 429


REFUSED = [("socket.connect", (None, (host, 443))) for host in ("192.0.2.1", "2001:db8::1")]
REFUSED += [
    ("socket.sendto", (None, ("192.0.2.1", 53))),
    ("socket.getaddrinfo", ("example.org", 443, 0, 0, 0)),
]


@pytest.mark.parametrize(("event", "args"), [*REFUSED, ("socket.gethostbyname", ("example.org",))])
def test_a_connection_is_refused(event: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(PermissionError, match=r"example\.org|192\.0\.2\.1|2001:db8::1"):
        refuse_network(event, args)
    refuse_network("socket.connect", (None, "/run/socket"))


def test_a_large_table_is_removed_once_it_is_sent(
    client: TestClient, worker: Stub, tmp_path: Path
) -> None:
    worker.table = bytes(range(256)) * 10_000
    assert client.post("/api/predict", files=PHOTO).content == worker.table
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("size", [0, 1000, 1_100_000, 3_000_000])
def test_a_file_is_stored_byte_by_byte(client: TestClient, worker: Stub, size: int) -> None:
    content = (bytes(range(256)) + b"\r\n--b\r\n--\r")[: max(size, 1)] * (size // 270 + 1)
    files = [("files", ("a.jpg", content)), ("files", ("A.jpg", b"another"))]
    fields = {"fps": "2.5", "end": ""}  # an empty field counts as left out
    assert client.post("/api/predict", files=files, data=fields).status_code == 200
    assert worker.uploads == {"a.jpg": content, "A (1).jpg": b"another"}
    assert worker.tasks[0].reading == {"fps": 2.5, "start": 0, "end": math.inf}


def test_a_request_that_is_no_form_is_refused(client: TestClient, tmp_path: Path) -> None:
    answer = client.post("/api/predict", json={"files": [{"data": ""}]})
    assert answer.status_code == 422
    assert "multipart/form-data" in answer.json()["detail"]
    assert [*tmp_path.iterdir()] == []


def test_an_upload_without_end_leaves_no_job(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOAD_SECONDS", 0.1)
    with connect(address, b"--b", form="Content-Length: 100") as client:
        assert b" 408 " in client.recv(4096)
    wait_until(lambda: not [*tmp_path.iterdir()])


def test_health_needs_no_worker(client: TestClient, worker: Stub) -> None:
    answer = client.get("/health")
    assert answer.json() == {"status": "ok", "version": __version__, "jobs": 0, "most": 100}
    assert worker.tasks == []
    live = TestClient(create_app(LivePage()), base_url="http://localhost")
    assert live.get("/health").json() == {"status": "ok", "version": __version__}


def test_outputs_are_listed_by_model_and_chosen_in_a_form(client: TestClient, worker: Stub) -> None:
    listed = client.get("/api/outputs").json()
    assert [*listed] == ["first", "second"]
    assert listed["second"] == ["expression", "pose"]

    files = {"files": ("a.jpg", b"x")}
    chosen = ["movements", "pose"]
    assert client.post("/api/predict", files=files, data={"outputs": chosen}).status_code == 200
    assert client.post("/api/predict", files=files).status_code == 200
    assert [task.heads for task in worker.tasks] == [tuple(chosen), ()]

    for wrong in (["smile"], ["pose, movements"], ["pose"] * 5):
        refused = client.post("/api/predict", files=files, data={"outputs": wrong})
        assert refused.status_code == 422
        assert refused.json()["detail"].startswith("outputs")
    refused = client.post("/api/predict", files=files, data={"outputs": ["pose"] * 13})
    assert refused.status_code == 400
    assert len(worker.tasks) == 2


def test_requests_name_the_outputs_of_all_heads(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()["paths"]["/api/predict"]["post"]["requestBody"]
    fields = schema["content"]["multipart/form-data"]["schema"]["properties"]
    names = {*fields["outputs"]["items"]["enum"]}
    assert names == {field.head for field in all_face_fields() if field.head}
    assert names == {EXPRESSION, *HEADS}


def test_the_schema_has_types_for_rows_requests_and_errors(queue: Jobs) -> None:
    queue.columns = {"path": "string", "status": "string", "face": "integer", "move_*": "number"}
    client = TestClient(create_app(queue), base_url="http://localhost")
    schema = client.get("/openapi.json").json()
    predict = schema["paths"]["/api/predict"]["post"]
    row = predict["responses"]["200"]["content"]["application/json"]["schema"]["items"]
    assert row["properties"]["face"] == {"type": ["integer", "null"]}
    assert row["patternProperties"] == {"^move_": {"type": ["number", "null"]}}
    assert row["required"] == ["path", "status"]
    body = predict["requestBody"]["content"]
    assert body["multipart/form-data"]["schema"]["properties"]["files"]["type"] == "array"
    assert [*body] == ["multipart/form-data"]
    problem = schema["components"]["schemas"]["Problem"]
    assert problem["properties"]["detail"]["type"] == "string"
    for status in ("400", "403", "413", "422", "429"):
        assert "Problem" in str(predict["responses"][status]["content"])


@pytest.mark.parametrize(
    "address", ["lab.example.org", "ftp://lab/", "https://", "https://a@b/", "https://[x/", "x"]
)
def test_a_wrong_public_address_is_one_line(address: str) -> None:
    with pytest.raises(FerVitError, match="Expected `public`"):
        public_address(address)


def test_a_public_address_may_send_and_no_other(queue: Jobs) -> None:
    public = public_address("https://Lab.example.org:443/fer/")
    app = create_app(queue, public=public)
    client = TestClient(app, base_url="http://localhost:7860")

    def post(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post("/api/predict", files=PHOTO, headers=named).status_code

    assert post(origin="https://lab.example.org", sec_fetch_site="same-origin") == 200
    assert post(origin="https://lab.example.org", host="lab.example.org") == 200
    assert post(host="evil.example", origin="https://lab.example.org") == 403
    for origin in (
        "http://lab.example.org",
        "https://lab.example.org:8443",
        "https://evil",
        "null",
    ):
        assert post(origin=origin) == 403
    assert post(origin="https://lab.example.org", sec_fetch_site="cross-site") == 403
    done = client.post("/api/report", files=PHOTO).json()
    assert done["html"] == f"/fer/results/{done['id']}/report/index.html"


def test_a_refusal_names_both_headers_and_the_remedy(client: TestClient) -> None:
    headers = {"origin": "https://lab.example.org"}
    detail = client.post("/api/predict", files=PHOTO, headers=headers).json()["detail"]
    for word in ("`https://lab.example.org`", "`localhost`", "--public", "Host", "Origin"):
        assert word in detail
    detail = client.get("/", headers={"host": "evil.example"}).json()["detail"]
    assert "`evil.example`" in detail
    assert "--hostnames" in detail


def test_more_connections_than_the_limit_get_503(
    queue: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    sock, address = listen("127.0.0.1", 0)
    with sock, serving(create_app(queue), sock):
        port = int(address.rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        wait_until(lambda: requests.get(f"{address}/health", timeout=PATIENCE).status_code == 503)
        for connection in idle:
            connection.close()
        wait_until(lambda: requests.get(f"{address}/health", timeout=PATIENCE).ok)


def test_names_of_results_cannot_be_guessed(queue: Jobs) -> None:
    names = {queue.new_folder().name for _ in range(100)}
    assert len(names) == 100
    assert all(len(urlsafe_b64decode(f"{name}==")) == 16 for name in names)  # 128 bits
