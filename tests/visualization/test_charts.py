"""Charts of further heads on the page: a model may have some of the outputs of a head."""

import re
from collections import Counter
from pathlib import Path

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
from fer_vit.report.explained_face import Evidence
from fer_vit.report.html import script
from fer_vit.sources.cartoon import draw_face
from fer_vit.visualization import charts
from fer_vit.visualization.charts import fixed_charts
from fer_vit.visualization.evidence import explain_faces
from fer_vit.visualization.explained_scores import ExplainOptions
from fer_vit.visualization.report import list_notes
from fer_vit.visualization.report_parts import Part, photo_views

SINGLE = [(head, name) for head, entry in HEADS.items() for name in entry.outputs or ["a b"]]


def small_model(outputs: dict[str, list[str]]) -> Recognizer:
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, regions=("nose", "mouth"))
    return load(build_model(config, "ab", outputs=outputs), "cpu")


def explained_face(model: Recognizer, folder: Path) -> tuple[Face, Evidence]:
    """Returns a face that a model has read, and its explanation."""
    photo = folder / "a.png"
    photo.write_bytes(encode_png(draw_face("fear", 0, 48)[0]))
    options = PhotoOptions(face="crop", detector="landmarks", workers=0)
    (found,) = model.find([photo], options)
    (classified,) = model.classify([found], [photo], "landmarks")
    part = Part(classified, photo_views(classified, found.crops), found.crops)
    ((view, evidence),) = explain_faces(model, part, ExplainOptions("ablation"))
    return view.face, evidence


@pytest.mark.parametrize(("head", "output"), SINGLE)
def test_a_head_of_one_output_has_a_chart_with_its_terms(
    head: str, output: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = small_model({head: [output]})
    face, evidence = explained_face(model, tmp_path)
    chart = evidence.charts[head]
    bias = fixed_charts(model.settings, evidence.terms)[head]["bias"]
    assert len(chart["face"]) == len(chart["regions"]) == len(bias) == 1
    assert chart["values"] == pytest.approx([*face.outputs.values()], abs=1e-3)


def test_a_chart_marks_weak_outputs_and_not_unmeasured_ones() -> None:
    model = small_model({"movements": ["a", "b", "c"]})
    model.settings.outputs = model.outputs.with_r({"movements": {"a": 0.59, "b": 0.6}})
    assert fixed_charts(model.settings, {})["movements"]["marks"] == ["weak", "", ""]
    assert list_notes(model) == [WEAK_MEANING]
    model.settings.outputs = model.outputs.with_r({})
    assert list_notes(model) == []


def test_an_entry_of_special_is_a_chart_without_a_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entropy = charts.Chart("Entropy", lambda settings, terms: {}, lambda face, terms: face.entropy)
    monkeypatch.setitem(charts.SPECIAL, "entropy", entropy)
    model = small_model({"pose": ["yaw"]})
    face, evidence = explained_face(model, tmp_path)
    fixed = fixed_charts(model.settings, evidence.terms)
    assert [*fixed] == ["pose", "entropy"]
    assert fixed["entropy"] == {"title": "Entropy"}
    assert evidence.charts["entropy"] == face.entropy


@pytest.mark.parametrize("name", charts.SPECIAL)
def test_an_entry_of_special_has_a_script_that_draws_it(name: str) -> None:
    script = Path(report.__file__).parent / "page" / f"{name}.js"
    assert f"CHARTS.{name} = " in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["page", "evaluation"])
def test_the_scripts_of_a_page_declare_a_name_once(page: str) -> None:
    """They are one script: a browser runs none of it if two files declare a constant."""
    declared = Counter[str]()
    pattern = r"^(?:async )?(?:const|let|class|function) ([^=({;\n]+|[\[{].*?[\]}])"
    for names in re.findall(pattern, script(page), re.MULTILINE):
        declared.update(re.findall(r"\w+", names))
    assert declared
    assert [name for name, count in declared.items() if count > 1] == []
