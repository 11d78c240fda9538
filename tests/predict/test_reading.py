"""Sources are read in order by processes that start at once, also before the model is loaded."""

from pathlib import Path

import pytest

from fer_vit import load
from fer_vit.face.image import encode_png
from fer_vit.geometry import Image
from fer_vit.model_settings import read_crop
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import start_reading
from fer_vit.store.hub import read_config, shipped_models


@pytest.mark.parametrize("name", [*shipped_models()])
def test_crops_of_a_started_reading_are_those_of_the_model(name: str) -> None:
    folder = shipped_models()[name]
    assert read_crop(read_config(folder, name), name) == load(name, "cpu").crop_spec
    batches = start_reading(name, [], PhotoOptions(workers=1))
    assert batches is not None
    assert [*batches] == []


def test_a_started_reading_gives_the_faces_of_a_later_one(astronaut: Image, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path in paths:
        path.write_bytes(encode_png(astronaut))
    paths[1].write_bytes(b"no image")
    options = PhotoOptions(workers=1, batch_size=2)
    started = start_reading(None, paths, options)
    model = load(None, "cpu")
    early = [*model.recognize(paths, options, started)]
    late = [*model.recognize(paths, options)]
    assert [faces.infos for faces in early] == [faces.infos for faces in late]
    for first, second in zip(early, late, strict=True):
        assert first.probabilities.tolist() == second.probabilities.tolist()


def test_models_whose_crops_are_unknown_are_not_read_for(tmp_path: Path) -> None:
    assert start_reading(str(tmp_path / "best.ckpt"), [], PhotoOptions(workers=1)) is None
    assert start_reading(None, [], PhotoOptions(workers=0)) is None
