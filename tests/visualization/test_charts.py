"""Charts of further heads on the page: a model may have some of the outputs of a head."""

import html
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fer_vit import report
from fer_vit.face.image import encode_png
from fer_vit.faces import Face
from fer_vit.heads import HEADS, WEAK_MEANING
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.sources.cartoon import draw_face
from fer_vit.visualization import charts
from fer_vit.visualization.explained_scores import ExplainOptions
from fer_vit.visualization.report import write_report
from fer_vit.visualization.report_parts import photo_parts
from fer_vit.visualization.timelines import Watched
from tests.helpers.reports import read_page

SINGLE = [(head, name) for head, entry in HEADS.items() for name in entry.outputs or ["a b"]]


def small_model(outputs: dict[str, list[str]]) -> Recognizer:
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, regions=("nose", "mouth"))
    return load(build_model(config, "ab", outputs=outputs), "cpu")


def report_of_face(model: Recognizer, folder: Path) -> tuple[Face, dict[str, Any]]:
    """Returns a face that a model has read, and the data of the page that explains it."""
    photo = folder / "a.png"
    photo.write_bytes(encode_png(draw_face("fear", 0, 48)[0]))
    options = PhotoOptions(face="crop", detector="landmarks", workers=0)
    (face,) = model.predict(photo, face="crop", detector="landmarks", workers=0)
    explain = ExplainOptions("ablation")
    parts = photo_parts(model, [photo], options)
    write_report(folder / "report", model, parts, Watched(), explain, folder)
    return face, read_page(folder / "report")


@pytest.mark.parametrize(("head", "output"), SINGLE)
def test_a_head_of_one_output_has_a_chart_with_its_terms(
    head: str, output: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    face, data = report_of_face(small_model({head: [output]}), tmp_path)
    chart = data["faces"][0]["charts"][head]
    assert len(chart["face"]) == len(chart["regions"]) == len(data["fixed"][head]["bias"]) == 1
    assert chart["values"] == pytest.approx([*face.outputs.values()], abs=1e-3)


@pytest.mark.parametrize(
    ("r", "marks"), [({"movements": {"a": 0.59, "b": 0.6}}, ["weak", "", ""]), ({}, [""] * 3)]
)
def test_a_chart_marks_weak_outputs_and_not_unmeasured_ones(
    r: dict[str, dict[str, float]], marks: list[str], tmp_path: Path
) -> None:
    model = small_model({"movements": ["a", "b", "c"]})
    model.settings.outputs = model.outputs.with_r(r)
    _, data = report_of_face(model, tmp_path)
    assert data["fixed"]["movements"]["marks"] == marks
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert (WEAK_MEANING in html.unescape(page)) is ("weak" in marks)


def test_an_entry_of_special_is_a_chart_without_a_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entropy = charts.SPECIAL["pose"]._replace(
        title="Entropy",
        fixed=lambda settings, terms: {},
        of_face=lambda face, terms: face.entropy,
    )
    monkeypatch.setitem(charts.SPECIAL, "entropy", entropy)
    face, data = report_of_face(small_model({"pose": ["yaw"]}), tmp_path)
    assert data["chartOrder"] == ["pose", "entropy"]
    assert data["fixed"]["entropy"] == {"title": "Entropy"}
    assert data["faces"][0]["charts"]["entropy"] == pytest.approx(face.entropy)


@pytest.mark.parametrize("name", charts.SPECIAL)
def test_an_entry_of_special_has_a_script_that_draws_it(name: str) -> None:
    script = Path(report.__file__).parent / "page" / f"{name}.js"
    assert f"CHARTS.{name} = " in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["page", "results"])
def test_the_scripts_of_a_page_declare_a_name_once(page: str) -> None:
    """They are one script: a browser runs none of it if two files declare a constant."""
    declared = Counter[str]()
    pattern = r"^(?:async )?(?:const|let|class|function) ([^=({;\n]+|[\[{].*?[\]}])"
    folder = Path(report.__file__).parent
    for file in (folder / f"{page}.js", *(folder / page).glob("*.js")):
        for names in re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE):
            declared.update(re.findall(r"\w+", names))
    assert declared
    assert [name for name, count in declared.items() if count > 1] == []
