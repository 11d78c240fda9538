"""Python as hostile users use it: threads, forks, and arguments of any type."""

import io
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image as Pil

from fer_vit import FerVitError, ImageError, load
from fer_vit.engine.torch_threads import few_threads
from fer_vit.face.image import encode_png
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.rendering import rasterize, save_figure
from fer_vit.store.model_folder import load_network
from fer_vit.system.settings import ThreadLock
from tests.helpers.processes import PATIENCE


@pytest.fixture(scope="module")
def model() -> Recognizer:
    return load(load_network(), "cpu")


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_thread_that_begins_during_a_prediction_keeps_the_threads_of_torch() -> None:
    before = torch.get_num_threads()
    entered, left = threading.Event(), threading.Event()
    numbers = []

    def predict() -> None:
        with few_threads(1):
            entered.set()
            assert left.wait(PATIENCE)
        numbers.append(torch.get_num_threads())

    try:
        torch.set_num_threads(3)
        with few_threads(1):
            thread = in_thread(predict)
            assert entered.wait(PATIENCE)
        left.set()
        thread.join(PATIENCE)
        in_thread(lambda: numbers.append(torch.get_num_threads())).join(PATIENCE)
        assert numbers == [3, 3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_one_thread_and_free_locks(model: Recognizer) -> None:
    """OpenMP's threads, and the thread that had a lock, do not exist there."""
    before = torch.get_num_threads()
    lock = ThreadLock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(PATIENCE)

    try:
        torch.set_num_threads(3)
        in_thread(hold)
        assert held.wait(PATIENCE)
        process = os.fork()
        if process == 0:
            with lock:  # a lock that is never free would wait for ever
                rasterize(Figure())
            os._exit(torch.get_num_threads())
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
        assert torch.get_num_threads() == 3
    finally:
        done.set()
        torch.set_num_threads(before)


@pytest.mark.slow
def test_figures_of_several_threads_leave_the_settings_of_matplotlib(
    model: Recognizer, astronaut: np.ndarray, tmp_path: Path
) -> None:
    face = model.predict(astronaut)[0]
    expected = face.plot(file=tmp_path / "alone.svg").tobytes()
    settings, filters = dict(matplotlib.rcParams), list(warnings.filters)
    pictures = []
    threads = [
        in_thread(lambda number=number: pictures.append(face.plot(file=tmp_path / f"{number}.svg")))
        for number in range(3)
    ]
    for thread in threads:
        thread.join(PATIENCE)
    assert [picture.tobytes() == expected for picture in pictures] == [True, True, True]
    assert (dict(matplotlib.rcParams), warnings.filters) == (settings, filters)
    with pytest.raises(FerVitError, match="Cannot write"):
        face.plot(file="/proc/none/a.svg")


@pytest.mark.parametrize("drawing", [(FigureCanvasAgg, "draw"), (Figure, "savefig")])
def test_a_setting_of_matplotlib_that_another_thread_changes_meanwhile_stays(
    drawing: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = getattr(*drawing)
    settings = dict(matplotlib.rcParams)

    def draw_and_change(*arguments: object, **options: object) -> None:
        draw(*arguments, **options)
        monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 7.0)

    monkeypatch.setattr(*drawing, draw_and_change)
    figure = Figure()
    save_figure(figure, tmp_path / "a.svg")
    rasterize(figure)
    assert dict(matplotlib.rcParams) == settings | {"lines.linewidth": 7.0}


def test_paths_of_any_kind_are_paths(
    model: Recognizer, tmp_path: Path, astronaut: np.ndarray
) -> None:
    (tmp_path / "a.png").write_bytes(encode_png(astronaut))
    path = tmp_path / "a.png"
    (entry,) = os.scandir(tmp_path)
    arrays = [
        np.array([str(path)]),
        np.array([path], object),
        np.array([os.fsencode(path)]),
        np.array([str(path)], np.dtypes.StringDType()),
    ]
    for images in (str(path), entry, *arrays):
        (face,) = model.predict(images, face="crop", detector="none", workers=0)
        assert face.path == str(path)


def test_images_in_memory_that_are_none(model: Recognizer) -> None:
    png = io.BytesIO()
    Pil.effect_noise((64, 64), 50).save(png, "PNG")
    truncated = Pil.open(io.BytesIO(png.getvalue()[:1000]))
    closed = Pil.new("RGB", (9, 9))
    closed.close()
    for image in (truncated, closed):
        with pytest.raises(ImageError, match="Open it again"):
            model.predict(image)

    grey = np.arange(16, dtype=np.uint8).reshape(4, 4)
    with pytest.raises(FerVitError, match="masked"):
        model.predict(np.ma.masked_greater(grey, 9))
    (face,) = model.predict(np.ma.masked_greater(grey, 99), face="crop", detector="none")
    assert np.array_equal(face.read_photo()[..., 0], grey)


@pytest.mark.parametrize("came", [3, b"name", torch.nn.Linear(1, 1), [1]])
def test_names_of_other_types_cause_one_line(model: Recognizer, came: object) -> None:
    with pytest.raises(FerVitError, match=f"got a {type(came).__name__}"):
        load(came)  # type: ignore[arg-type]
    face = model.predict(np.zeros((20, 20, 3), np.uint8), face="crop", detector="none")[0]
    with pytest.raises(FerVitError, match="method"):
        model.explain(face, came)  # type: ignore[arg-type]


def test_a_photo_that_changed_its_size_is_not_explained(
    model: Recognizer, tmp_path: Path, astronaut: np.ndarray
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encode_png(astronaut))
    face = model.predict(path)[0]
    path.write_bytes(encode_png(astronaut[:400]))
    for use in (face.read_photo, face.plot, lambda: model.explain(face)):
        with pytest.raises(ImageError, match=r"512 x 512 pixels.*got 512 x 400"):
            use()


def test_forks_compute_in_one_thread_also_with_a_model_that_was_pickled(model: Recognizer) -> None:
    """A child that was forked in a prediction has the threads of no other process."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for used in (model, pickle.loads(pickle.dumps(model))):
            process = os.fork()
            if process == 0:
                used.predict(np.zeros((20, 20, 3), np.uint8), face="crop", detector="none")
                os._exit(torch.get_num_threads())
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    finally:
        torch.set_num_threads(before)
