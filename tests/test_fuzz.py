"""Broken and made-up manifests, tables, models and configs: each works, or is an error of one line.

`FER_VIT_FUZZ=5000 python -m pytest tests/test_fuzz.py` tries so many of each, other ones every
time.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings, strategies as st

from fer_vit import load
from fer_vit.data.dataset import FaceDataset
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import SPLITS, Reading, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.face.image import encode_png
from fer_vit.geometry import LANDMARKS
from fer_vit.predict.outputs import Outputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.table_folder import predict_folder
from fer_vit.processes import ProcessRank
from tests.helpers.commands import TINY, error_line, exit_code, main
from tests.helpers.faces import tiny_recognizer


@cache
def schema() -> pa.Schema:
    """The columns of a manifest."""
    with TemporaryDirectory() as folder:
        write_manifest(Path(folder, "m.parquet"), Reading(("happiness", "fear"), []), "made")
        return pq.read_schema(Path(folder, "m.parquet")).remove_metadata()


TIMES = int(os.environ.get("FER_VIT_FUZZ", "0"))
KEPT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def fuzz(times: int) -> Any:
    """The same examples in every run. `FER_VIT_FUZZ` gives many other examples."""
    return settings(
        max_examples=TIMES or times,
        derandomize=not TIMES,
        deadline=None,
        database=None,
        suppress_health_check=KEPT,
    )


@st.composite
def damage(draw: st.DrawFn) -> list[tuple[float, int]] | float:
    """Bytes to replace, by their place from 0 to 1, or the place where the file is cut."""
    # Parquet's footer is at the end
    place = st.floats(0, 1, exclude_max=True) | st.floats(0.85, 1, exclude_max=True)
    return draw(st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=12) | place)


def damaged(data: bytes, how: list[tuple[float, int]] | float) -> bytes:
    if isinstance(how, float):
        return data[: int(how * len(data))]
    broken = bytearray(data)
    for place, value in how:
        broken[int(place * len(data))] = value
    return bytes(broken)


@contextmanager
def one_line() -> Iterator[None]:
    """Accepts an error of one line."""
    message = "one line"
    try:
        yield
    except FerVitError as error:
        message = str(error)
    assert len(message.splitlines()) == 1, message


def read_all(path: Path) -> None:
    """Reads a manifest and every image of it."""
    with one_line():
        manifest = Manifest.read(path)
        for split in SPLITS:
            dataset = FaceDataset(manifest.split(split), CropSpec(32))
            assert len(manifest.near_duplicates(split)) == len(dataset)
            for row in range(len(dataset)):
                with one_line():
                    assert dataset[row].image.shape == (32, 32, 3)


@pytest.fixture(scope="module")
def manifest(drawn: Path) -> bytes:
    """A file with a few of the drawn faces, all with landmarks."""
    table = Manifest.read(drawn / "faces.parquet").table.take(list(range(0, 170, 17)))
    pq.write_table(table.combine_chunks(), file := pa.BufferOutputStream(), compression="zstd")
    return file.getvalue().to_pybytes()


@given(how=damage())
@fuzz(25)
def test_a_damaged_manifest(how: Any, manifest: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.parquet").write_bytes(damaged(manifest, how))
    read_all(tmp_path / "m.parquet")


PNG = encode_png(np.zeros((8, 8, 3), np.uint8))
WORDS = st.sampled_from(
    ["train", "val", "happiness", "fear", "", "\n", "\0", "../x.png", "a" * 300, "\u202e"]
)
NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -1.0, 1e38])
IMAGE = {"bytes": st.sampled_from([None, b"", PNG, PNG[:40]]), "path": WORDS | st.none()}
POINTS = st.lists(st.none() | st.lists(NUMBERS, max_size=3), max_size=6) | st.just([[1.0, 2]] * 5)
CELLS: dict[str, tuple[object, st.SearchStrategy[Any]]] = {
    "image": ({"bytes": PNG, "path": "a.png"}, st.fixed_dictionaries(IMAGE)),
    "split": ("train", st.sampled_from(SPLITS) | WORDS | st.none()),
    "label": ("fear", st.sampled_from(["happiness", "fear"]) | WORDS | st.none()),
    "votes": (None, st.none() | st.lists(NUMBERS | st.none(), max_size=3)),
    "landmarks": (None, st.none() | POINTS),
    "score": (None, NUMBERS | st.none()),
    "face": (0, st.integers(-(2**31), 2**31 - 1) | st.none()),
    "source": ("drawn", WORDS | st.none()),
    "near_duplicate": (None, st.booleans() | st.none()),
}
"""The usual cell of each column, and odd cells."""
JSON = st.recursive(
    st.none() | st.integers() | WORDS, lambda more: st.lists(more) | st.dictionaries(WORDS, more)
)
OTHER_TYPES = (
    pa.int64(),
    pa.string(),
    pa.binary(),
    pa.list_(pa.string()),
    pa.large_string(),
    pa.float16(),
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A table with some odd cells, or with a column of another type, and with odd metadata."""
    odd = draw(st.sets(st.sampled_from(list(CELLS)), max_size=3))
    row = {
        name: strange if name in odd else st.just(usual) for name, (usual, strange) in CELLS.items()
    }
    table = pa.Table.from_pylist(draw(st.lists(st.fixed_dictionaries(row), max_size=4)), schema())
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(schema().names))
        kind = draw(st.sampled_from(OTHER_TYPES))
        table = table.set_column(schema().get_field_index(name), name, pa.nulls(len(table), kind))
    if draw(st.integers(0, 5)) == 0:
        table = table.append_column(
            draw(st.sampled_from([*schema().names, "more"])), pa.nulls(len(table))
        )
    labels = st.just(["happiness", "fear"]) | st.lists(WORDS, max_size=3) | JSON
    meta = {"labels": draw(labels), "landmarks": draw(st.just(LANDMARKS) | JSON), "version": "0"}
    text = draw(st.just(json.dumps(meta).encode()) | st.binary(max_size=20))
    return table.replace_schema_metadata({"fer_vit": text})


@given(table=tables())
@fuzz(25)
def test_a_manifest_of_odd_values(table: pa.Table, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "m.parquet")
    read_all(tmp_path / "m.parquet")


@given(how=damage())
@fuzz(25)
def test_a_damaged_table_of_predictions(how: Any, tmp_path: Path) -> None:
    photos = [tmp_path / f"{number}.jpg" for number in range(7)]  # which are not there
    out = tmp_path / "faces"
    whole = tmp_path / "whole.parquet"

    def predict() -> None:
        options = PhotoOptions(workers=0)
        model = tiny_recognizer(("happiness", "fear"))
        predict_folder(model, photos, options, Outputs(out, overwrite=False), 7, ProcessRank())

    if not whole.exists():
        predict()
        (table,) = out.iterdir()
        shutil.copy(table, whole)
    (table,) = out.iterdir()
    table.write_bytes(damaged(whole.read_bytes(), how))
    with one_line():
        predict()


@given(how=damage(), file=st.sampled_from(["config.json", "model.safetensors"]))
@fuzz(15)
def test_a_damaged_model(how: Any, file: str, model: Path, tmp_path: Path) -> None:
    load_changed(model, tmp_path, file, damaged((model / file).read_bytes(), how))


def load_changed(model: Path, folder: Path, file: str, data: bytes) -> None:
    """Loads a copy of a model with another content of one file."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    (folder / file).write_bytes(data)
    with one_line():
        load(folder)


@pytest.fixture(scope="module")
def model(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `fer-vit export` writes it."""
    folder = tmp_path_factory.mktemp("models") / "model"
    main(["export", str(folder), "--checkpoint", str(checkpoint)])
    return folder


VALUES = [
    None,
    True,
    "",
    "x",
    "../..",
    -1,
    0,
    1,
    3,
    1.5,
    10**9,
    2**62,
    -(2**62),
    1e308,
    math.inf,
    math.nan,
    [],
    {},
]
CLASSES = st.dictionaries(
    st.sampled_from(["class_path", "init_args", "a"]),
    st.sampled_from(["os.system", "fer_vit.Nothing", {}]),
)
LISTS = st.lists(st.integers(-1, 9) | st.text(max_size=3), max_size=4)
ODD = st.sampled_from(VALUES) | LISTS | CLASSES | st.just([[[[[[[[[[]]]]]]]]]])
CONFIG = json.loads(
    (Path(__file__).parents[1] / "fer_vit/weights/ferplus-fairface-small/config.json").read_text()
)


@example(changes={"depth": 10**9})
@example(changes={"img_size": 8 * 10**6})
@example(changes={"embed_dim": 2**40, "num_heads": 2})
@example(changes={"region_grid": 10**6})
@given(
    changes=st.dictionaries(
        st.sampled_from([*CONFIG["config"], *CONFIG]), ODD, min_size=1, max_size=3
    )
)
@fuzz(15)
def test_a_model_of_odd_settings(changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    written = json.loads((model / "config.json").read_text())
    config = written["config"]
    for name, value in changes.items():
        (config if name in config else written)[name] = value
    load_changed(model, tmp_path, "config.json", json.dumps(written).encode())


PLACES = [
    f"model.network.{name}" for name in CONFIG["config"] if name not in ("depth", "pretrained")
] + [
    *(
        "model",
        "model.network",
        "model.align",
        "model.template",
        "model.lr",
        "model.warmup",
        "model.logit_adjust",
    ),
    *("model.compile", "model.labels", "model.nothing"),
    *(
        "data",
        "data.manifest",
        "data.batch_size",
        "data.num_workers",
        "data.augment",
        "data.balanced",
        "data.size",
    ),
    *(
        "trainer",
        "trainer.max_epochs",
        "trainer.precision",
        "trainer.callbacks",
        "trainer.logger",
        "trainer.strategy",
    ),
    *(
        "trainer.devices",
        "trainer.accelerator",
        "trainer.limit_val_batches",
        "trainer.gradient_clip_val",
    ),
    *("checkpoint.monitor", "checkpoint.save_top_k", "seed_everything", "ckpt_path", "optimizer"),
]
TAGS = [
    "!!python/object/apply:os.mkdir [harm]",
    "!!python/name:os.system",
    "&a [*a]",
    "!nothing {}",
    "{{}: 1}",
]
TAGS += ["[" * 2000, "'\\ud800'"]


@pytest.fixture
def begins(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., bool]:
    """Runs `fit` with these configs up to the training;
    returns False if it ends with one line before.
    """

    def begins(*configs: str) -> bool:
        for number, text in enumerate(configs):
            Path(f"{number}.yaml").write_text(text)
        files = [f"--config={number}.yaml" for number in range(len(configs))]
        code = exit_code("fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}", *files)
        assert code in (0, 2)
        return code == 0 or not error_line(capsys)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(L.Trainer, "fit", lambda *_, **__: None)
    return begins


@example(values=[("model.network.backbone", None)])
@given(values=st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=2))
@fuzz(6)
def test_a_config_of_odd_values(values: list[tuple[str, Any]], begins: Callable[..., bool]) -> None:
    trees = [
        reduce(lambda tree, part: {part: tree}, reversed(name.split(".")), value)
        for name, value in values
    ]
    begins(*map(yaml.safe_dump, trees))


@pytest.mark.parametrize("text", TAGS)
def test_a_config_that_is_no_plain_yaml(
    text: str, begins: Callable[..., bool], tmp_path: Path
) -> None:
    assert not begins(f"model:\n  network: {text}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["0.yaml"]
