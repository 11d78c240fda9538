"""Tasks of the worker process: in the process of the test, and in a worker that is killed."""

import asyncio
import errno
import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import av
import numpy as np
import pytest
from PIL import Image
from skimage.data import astronaut

import fer_vit.face.image as image_file
from fer_vit.app import jobs, server, tasks
from fer_vit.app.guard import refuse_network
from fer_vit.app.jobs import JobEvent, Task, Worker
from fer_vit.app.tasks import (
    describe_failure,
    run_task,
)
from fer_vit.commands.app import app
from fer_vit.errors import FerVitError
from fer_vit.predict.outputs import Outputs
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.visualization.explained_scores import ExplainOptions
from tests.helpers.commands import assert_same, main, read
from tests.helpers.hostile import bomb
from tests.helpers.marks import slow
from tests.helpers.servers import obey
from tests.helpers.videos import write_video


def fill_uploads(folder: Path) -> Path:
    """Returns a folder of uploads in the folder of a job."""
    uploads = folder / "job" / "uploads"
    uploads.mkdir(parents=True)
    Image.fromarray(astronaut()).save(uploads / "group.jpg")
    Image.fromarray(np.full((90, 90, 3), 120, np.uint8)).save(uploads / "empty.png")
    (uploads / "text.jpg").write_text("Hello")
    return uploads


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of uploads, which is the working directory."""
    folder = fill_uploads(tmp_path)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def quick_explanations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports explain by the method that takes a tenth of the time."""
    monkeypatch.setattr(tasks, "ExplainOptions", partial(ExplainOptions, "relevance"))


@cache
def loaded(name: str) -> Recognizer:
    return load(name)


def do(task: Task, events: list[JobEvent]) -> None:
    """Does a task as the worker process does; adds its events for the client."""

    def send(event: JobEvent) -> None:
        if event["state"] != "reading":
            events.append(event)

    run_task(task, loaded(task.model), send)


def run(
    folder: Path, names: list[str], table: str = "faces.csv", report: bool = False, **reading: Any
) -> list[JobEvent]:
    events: list[JobEvent] = []
    do(Task(folder.parent, names, DEFAULT_MODEL, table, report, reading), events)
    return events


def test_a_table_is_that_of_predict(uploads: Path) -> None:
    assert run(uploads, ["group.jpg", "empty.png", "text.jpg"]) == [{"state": "done"}]
    main(["predict", "group.jpg", "empty.png", "text.jpg", "--output", "../expected.csv"])
    assert_same(read(uploads.parent / "faces.csv"), read(uploads.parent / "expected.csv"))


def test_a_table_has_the_chosen_outputs(uploads: Path) -> None:
    task = Task(uploads.parent, ["group.jpg"], DEFAULT_MODEL, "faces.json", False, {})
    events: list[JobEvent] = []
    do(task._replace(heads=("movements",)), events)
    main(["predict", "group.jpg", "--outputs", "movements", "--output", "../expected.jsonl"])
    (row,) = json.loads((uploads.parent / "faces.json").read_text())
    (expected,) = read(uploads.parent / "expected.jsonl")
    assert row == expected
    assert "move_jawOpen" in row
    assert "label" not in row
    assert "yaw" not in row
    small = task._replace(model="ferplus-fairface-small", heads=("affect",))
    with pytest.raises(FerVitError, match="but got affect"):
        do(small, events)


class Report(NamedTuple):
    """What the job of a report yields and writes."""

    folder: Path
    events: list[JobEvent]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a photo of a face, one without a face, a text, and a clip."""
    uploads = fill_uploads(tmp_path_factory.mktemp("report"))
    write_video(uploads / "clip.mp4", [astronaut()] * 10, [n / 10 for n in range(10)])
    names = ["group.jpg", "empty.png", "text.jpg", "clip.mp4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(uploads)
        patch.setattr(tasks, "ExplainOptions", partial(ExplainOptions, "relevance"))
        events = run(uploads, names, report=True, fps=3, start=0.2, end=0.9)
    return Report(uploads.parent, events)


def test_a_report_has_a_message_for_each_file(report: Report) -> None:
    group, clip = report.events[0]["messages"]
    assert re.findall(r"group\.jpg|happiness|\d+ ", group) == ["group.jpg", "1 ", "1 ", "happiness"]
    assert re.findall(r"clip\.mp4|happiness|\d+ ", clip) == ["clip.mp4", "1 ", "happiness"]
    empty, text = report.events[0]["warnings"]
    assert "empty.png" in empty
    assert re.search(r"^text\.jpg is not a photo .* JPEG", text)


def test_a_report_counts_the_faces_that_it_explains(report: Report) -> None:
    _, *explaining, _ = report.events
    assert explaining == [{"state": "explaining", "faces": n, "of": 3} for n in (1, 2, 3)]


def test_a_report_shows_photos_with_their_faces(report: Report) -> None:
    done = report.events[-1]
    assert done["photos"] == [{"name": "group.jpg", "file": "photos/0.jpg"}]
    marked = np.asarray(Image.open(report.folder / "photos" / "0.jpg")).astype(int)
    changed = np.abs(marked - astronaut()).max(2) > 100
    assert changed[60:180, 170:275].mean() > 0.02
    assert changed[250:].mean() < 0.001


def test_a_report_writes_its_files_without_paths_of_the_server(report: Report) -> None:
    assert [row["frame"] for row in read(report.folder / "faces.csv")][3:] == [2, 6]
    files = {path.name for path in report.folder.iterdir()}
    assert {"summary.csv", "intervals.csv", "marked.mp4", "report.zip"} <= files
    page = (report.folder / "report" / "index.html").read_text()
    assert str(report.folder / "uploads") not in page


def test_a_report_without_explanation_has_tables_and_pictures(uploads: Path) -> None:
    events: list[JobEvent] = []
    task = Task(uploads.parent, ["group.jpg"], DEFAULT_MODEL, "faces.csv", True, {}, explain=False)
    do(task, events)
    assert [event["state"] for event in events] == ["found", "done"]
    files = {path.name for path in uploads.parent.iterdir()}
    assert files == {"uploads", "faces.csv", "photos"}


@pytest.mark.usefixtures("quick_explanations")
@pytest.mark.parametrize("explain", [True, False])
def test_a_photo_is_decoded_once_for_its_faces_and_once_for_its_page(
    explain: bool, uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[bytes] = Counter()
    decode = image_file.decode_image

    def count(content: bytes, *options: int, **further: bool) -> np.ndarray:
        decoded[content] += 1
        return decode(content, *options, **further)

    monkeypatch.setattr(image_file, "decode_image", count)
    names = ["group.jpg", "empty.png"]
    do(Task(uploads.parent, names, DEFAULT_MODEL, "faces.csv", True, {}, explain=explain), [])
    assert [decoded[Path(name).read_bytes()] for name in names] == [2, 1]


@pytest.mark.usefixtures("quick_explanations")
def test_a_clip_is_searched_once(uploads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(uploads / "clip.mp4", [astronaut()] * 2, [0, 0.1])
    searched: list[object] = []
    recognize = Recognizer.recognize

    def count(self: Recognizer, sources: list[Path], *rest: Any) -> Any:
        searched.append(sources)
        return recognize(self, sources, *rest)

    monkeypatch.setattr(Recognizer, "recognize", count)
    run(uploads, ["clip.mp4"], report=True)
    assert searched == [[Path("clip.mp4")]]
    assert "person 1" in (uploads.parent / "report" / "index.html").read_text()


def test_a_report_of_the_app_logs_no_estimate(
    uploads: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fer_vit"):
        run(uploads, ["empty.png"], report=True)
    assert caplog.messages == []


def test_json_is_the_rows_of_json_lines(uploads: Path) -> None:
    run(uploads, ["group.jpg", "empty.png"], "faces.jsonl")
    lines = (uploads.parent / "faces.jsonl").read_text().splitlines()
    run(uploads, ["group.jpg", "empty.png"], "faces.json")
    assert json.loads((uploads.parent / "faces.json").read_text()) == [*map(json.loads, lines)]


def test_rows_have_the_types_that_the_worker_names(
    uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    run(uploads, ["group.jpg", "empty.png"], "faces.json")
    columns = first_event(monkeypatch)["columns"]
    for row in json.loads((uploads.parent / "faces.json").read_text()):
        for name, cell in row.items():
            prefix = name.partition("_")[0]
            kind = columns[name] if name in columns else columns[f"{prefix}_*"]
            assert cell is None or isinstance(cell, types[kind]), name


def first_event(monkeypatch: pytest.MonkeyPatch) -> JobEvent:
    """What a worker process reports before its first task."""
    events: list[JobEvent] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "addaudithook", Mock())  # a real one stays in the process
        patch.setattr(Path, "write_text", Mock())  # this process is not to be ended first
        with pytest.raises(EOFError):
            tasks.work(Mock(send=events.append, recv=Mock(side_effect=EOFError)), [DEFAULT_MODEL])
    return events[0]


@pytest.mark.parametrize(("format", "suffix"), [("JPEG", ".jpeg"), ("WEBP", ".webp")])
def test_files_without_suffix_are_named_by_their_content(
    format: str, suffix: str, uploads: Path
) -> None:
    for name in ("blob", "notes.txt"):
        Image.new("RGB", (8, 8)).save(uploads / name, format)
    (uploads / f"blob{suffix}").write_bytes(b"another")
    given = ["blob", f"blob{suffix}", "notes.txt"]
    for _ in range(2):  # also in a second attempt
        run(uploads, given)
        names = [f"blob (1){suffix}", f"blob{suffix}", f"notes.txt{suffix}"]
        assert [path for path, _ in statuses(uploads)] == names


def test_a_photo_without_suffix_is_read(uploads: Path) -> None:
    Image.fromarray(astronaut()).save(uploads / "blob", "WEBP")
    assert run(uploads, ["blob"]) == [{"state": "done"}]
    assert [row["label"] for row in read(uploads.parent / "faces.csv")] == ["happiness"]


def test_a_clip_without_suffix_is_read(uploads: Path) -> None:
    write_video(uploads / "clip.mkv", [astronaut()] * 3, [0, 0.1, 0.2])
    (uploads / "clip.mkv").rename(uploads / "blob")
    assert run(uploads, ["blob"]) == [{"state": "done"}]
    rows = read(uploads.parent / "faces.csv")
    assert {row["path"] for row in rows} == {"blob.webm"}
    assert len(rows) == 3


def statuses(folder: Path) -> list[tuple[str, str]]:
    """The path and the status of each row of the table."""
    return [(row["path"], row["status"]) for row in read(folder.parent / "faces.csv")]


@pytest.mark.parametrize("name", ["notes.txt", "a", "a.jpg.svg"])
def test_a_file_that_is_no_photo_has_a_row_and_the_others_are_predicted(
    uploads: Path, name: str
) -> None:
    (uploads / name).write_text("<svg>Hello</svg>")
    run(uploads, [name, "group.jpg"])
    assert statuses(uploads) == [(name, image_file.UNREADABLE), ("group.jpg", "ok")]


@pytest.mark.parametrize("names", [["bomb.jpg", "group.jpg"], *slow(["group.jpg", "bomb.jpg"])])
def test_limits_of_pixels(uploads: Path, names: list[str]) -> None:
    (uploads / "bomb.jpg").write_bytes(bomb("jpeg"))
    run(uploads, names)
    status = dict(statuses(uploads))
    assert [*status] == names
    assert status["group.jpg"] == "ok"
    assert "67 megapixels" in status["bomb.jpg"]
    Image.new("1", (8160, 6144)).save(uploads / "phone.png")  # 50 megapixels
    run(uploads, ["phone.png"])
    assert statuses(uploads) == [("phone.png", "no face")]


def test_clips_have_a_limit_of_pixels_together(
    uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    black = [np.zeros((64, 64, 3), np.uint8)] * 20
    for name in ("a.mp4", "b.mp4"):
        write_video(uploads / name, black, [number / 10 for number in range(20)])
    names = ["a.mp4", "group.jpg", "b.mp4"]
    monkeypatch.setattr(tasks, "MAX_TASK_PIXELS", 30 * 64 * 64)
    run(uploads, names)
    frames = Counter(path for path, _ in statuses(uploads))
    assert frames == {"a.mp4": 20, "group.jpg": 1, "b.mp4": 1}
    assert "too long for its size" in dict(statuses(uploads))["b.mp4"]
    run(uploads, names, end=1.0)
    frames = Counter(path for path, _ in statuses(uploads))
    assert frames == {"a.mp4": 10, "group.jpg": 1, "b.mp4": 10}


def test_the_marked_copy_is_of_the_clip_that_is_read(
    uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    black = np.zeros((64, 64, 3), np.uint8)
    write_video(uploads / "long.mp4", [black] * 40, [number / 10 for number in range(40)])
    write_video(uploads / "short.mp4", [255 - black] * 3, [0, 0.1, 0.2])
    monkeypatch.setattr(tasks, "MAX_TASK_PIXELS", 30 * 64 * 64)
    run(uploads, ["long.mp4", "short.mp4"], report=True)
    with av.open(str(uploads.parent / "marked.mp4")) as copy:
        frames = [frame.to_ndarray(format="rgb24") for frame in copy.decode(video=0)]
    assert len(frames) == 3
    assert np.min(frames) > 200


@pytest.mark.usefixtures("quick_explanations")
def test_json_is_complete_if_there_is_no_marked_copy(uploads: Path) -> None:
    (uploads / "torn.mp4").write_bytes(b"no video")
    found_faces, *_ = run(uploads, ["torn.mp4", "group.jpg"], "faces.json", report=True)
    rows = json.loads((uploads.parent / "faces.json").read_text())
    assert [row["path"] for row in rows] == ["torn.mp4", "group.jpg"]
    assert not (uploads.parent / "marked.mp4").exists()
    assert any("marked copy" in warning for warning in found_faces["warnings"])


def test_a_table_of_people_that_cannot_be_written_is_no_warning_of_a_marked_copy(
    uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uploads / "torn.mp4").write_bytes(b"no video")
    monkeypatch.setattr(Outputs, "write_people", Mock(side_effect=FerVitError("full disk")))
    with pytest.raises(FerVitError, match="full disk"):
        run(uploads, ["torn.mp4"], report=True)
    assert (uploads.parent / "faces.csv").exists()


@pytest.mark.usefixtures("quick_explanations")
def test_a_report_names_refused_files_and_explains_the_others(
    uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uploads / "bomb.jpg").write_bytes(bomb("jpeg"))
    (uploads / "notes.txt").write_text("Hello")
    write_video(uploads / "clip.mp4", [astronaut()] * 3, [0, 0.1, 0.2])
    monkeypatch.setattr(tasks, "MAX_TASK_PIXELS", 0)
    found_faces, *_, done = run(
        uploads, ["bomb.jpg", "clip.mp4", "notes.txt", "group.jpg"], report=True
    )
    bombed, clip, notes = found_faces["warnings"]
    (group,) = found_faces["messages"]
    assert "bomb.jpg" in bombed
    assert "67 megapixels" in bombed
    assert "too long for its size" in clip
    assert "notes.txt" in notes
    assert "1 happiness" in group
    assert [photo["name"] for photo in done["photos"]] == ["group.jpg"]
    page = (uploads.parent / "report" / "index.html").read_text()
    assert all(name in page for name in ("bomb.jpg", "clip.mp4", "notes.txt"))
    assert not (uploads.parent / "summary.csv").exists()


@pytest.mark.usefixtures("quick_explanations")
def test_a_refused_clip_is_no_photo_of_the_report(
    uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(uploads / "clip.mp4", [astronaut()] * 3, [0, 0.1, 0.2])
    monkeypatch.setattr(tasks, "MAX_TASK_PIXELS", 0)
    run(uploads, ["clip.mp4", "group.jpg"], report=True)
    page = (uploads.parent / "report" / "index.html").read_text()
    facts = dict(re.findall(r"<dt>(Photos|Frames)</dt><dd>(.*?)</dd>", page))
    assert facts["Photos"] == "1"
    assert facts["Frames"].startswith("1 ")
    (reason,) = re.findall(r"<bdi>clip.mp4</bdi>: (.*?)</li>", page)
    assert "too long for its size" in reason


def test_refused_files_alone_have_rows(uploads: Path) -> None:
    (uploads / "bomb.jpg").write_bytes(bomb("jpeg"))
    *_, done = run(uploads, ["bomb.jpg"], report=True)
    assert done["photos"] == []
    ((path, status),) = statuses(uploads)
    assert path == "bomb.jpg"
    assert "67 megapixels" in status


def test_a_failure_has_a_reason_and_no_path_of_the_server() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/srv/secret/faces.csv")
    unwritten = FerVitError("Cannot write /srv/secret/faces.csv.")
    unwritten.__cause__ = full
    for error in (full, unwritten):
        message = describe_failure(error)
        assert os.strerror(errno.ENOSPC) in message
        assert message.startswith("The server ")
        assert "secret" not in message
    assert describe_failure(FerVitError("No face.")) == "No face."


def test_both_processes_refuse_the_network_before_the_first_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", calls.append)  # a real one stays in the process
    monkeypatch.setattr(Path, "write_text", Mock())  # this process is not to be ended first
    pipe = Mock(send=calls.append, recv=Mock(side_effect=EOFError))
    with pytest.raises(EOFError):
        tasks.work(pipe, [DEFAULT_MODEL])
    assert calls[0] is refuse_network
    assert calls[1]["state"] == "ready"
    assert calls[1]["heads"] == {DEFAULT_MODEL: loaded(DEFAULT_MODEL).heads}

    @contextmanager
    def served(*_: object) -> Iterator[Mock]:
        calls.append("serving")
        yield Mock(is_alive=Mock(return_value=False))

    calls.clear()
    monkeypatch.setattr(jobs, "Worker", Mock())
    monkeypatch.setattr(server, "create_app", Mock())
    monkeypatch.setattr(server, "serving", served)
    app(port=0)
    assert calls == [refuse_network, "serving"]


def run_order(worker: Worker, order: str, leave_after: float = 600) -> list[JobEvent]:
    end = time.monotonic() + leave_after

    async def gone() -> bool:
        return time.monotonic() > end

    return run_worker(worker, Task(Path(), [], order, "", False, {}), gone)


async def never_gone() -> bool:
    return False


def run_worker(
    worker: Worker, task: Task, gone: Callable[[], Awaitable[bool]] = never_gone
) -> list[JobEvent]:
    async def events() -> list[JobEvent]:
        return [event async for event in worker.run(task, gone)]

    return asyncio.run(events())


@pytest.fixture(scope="module")
def any_worker() -> Iterator[Worker]:
    """A worker without a model, which obeys its orders; it replaces its process when that ends."""
    started = Worker(["any"], obey)
    started.wait()
    yield started
    started.close()


@pytest.fixture
def worker(any_worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker that soon notices that its client is gone."""
    monkeypatch.setattr(jobs, "CLIENT_CHECK_SECONDS", 0.05)
    return any_worker


def test_a_worker_that_fails_at_its_start_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CLIENT_CHECK_SECONDS", 0.05)
    with pytest.raises(FerVitError, match="no such model"):
        Worker(["gone"], obey).wait()
    with pytest.raises(FerVitError, match="could not start"):
        Worker(["dead"], obey).wait()


def test_a_worker_is_stopped_when_its_client_leaves(worker: Worker) -> None:
    assert run_order(worker, "work") == [{"state": "done"}]
    first = worker._process
    assert run_order(worker, "hang", leave_after=0.1) == [{"state": "cancelled"}]
    assert not first.is_alive()
    assert run_order(worker, "work") == [{"state": "done"}]


def test_a_worker_that_died_is_replaced(worker: Worker) -> None:
    worker._process.kill()
    worker._process.join()
    assert run_order(worker, "work") == [{"state": "done"}]
    (failed,) = run_order(worker, "die")
    assert failed["state"] == "failed"
    assert run_order(worker, "work") == [{"state": "done"}]


def test_a_worker_that_keeps_much_memory_is_replaced(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_order(worker, "work") == [{"state": "done"}]
    first = worker._process
    assert run_order(worker, "work") == [{"state": "done"}]
    assert worker._process is first
    monkeypatch.setattr(worker, "_max_kept", 0)
    assert run_order(worker, "work") == [{"state": "done"}]
    assert worker._process is not first


@pytest.mark.parametrize(
    ("names", "crashed"),
    [
        (["a", "b"], "[]"),
        (["a", "deadly", "b"], "[1]"),
        (["deadly", "a", "deadly"], "[0, 2]"),
        (["deadly"], "[0]"),
    ],
)
def test_a_task_is_repeated_without_the_files_that_kill_the_worker(
    worker: Worker, tmp_path: Path, names: list[str], crashed: str
) -> None:
    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "a").touch()
    (tmp_path / ".faces.csv.0123abcd.part").mkdir()  # what an attempt has left
    events = run_worker(worker, Task(tmp_path, names, "read", "", False, {}))
    assert events == [{"state": "done"}]
    assert (tmp_path / "faces.csv").read_text() == crashed
    assert (tmp_path / "uploads" / "a").exists()
    assert (tmp_path / ".faces.csv.0123abcd.part").exists() == (crashed == "[]")


def test_a_worker_that_takes_long_is_stopped(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_SECONDS", 0.2)
    (failed,) = run_order(worker, "hang")
    assert failed["state"] == "failed"
    assert "0.2 seconds" in failed["message"]


def test_a_closed_worker_has_no_process() -> None:
    worker = Worker(["any"], obey)
    worker.wait()
    assert worker._process.is_alive()
    worker.close()
    assert not worker._process.is_alive()
