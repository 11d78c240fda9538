"""Charts of further heads on the page: a model may have some of the outputs of a head."""

from pathlib import Path

import pytest
import torch

from fer_vit.face.image import encode_png
from fer_vit.heads import HEADS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.sources.drawn import draw_face
from fer_vit.visualization.charts import fixed_charts
from fer_vit.visualization.evidence import ExplainOptions, explain_faces

SINGLE = [(head, name) for head, entry in HEADS.items() for name in entry.outputs or ["a b"]]


@pytest.mark.parametrize(("head", "output"), SINGLE)
def test_a_head_of_one_output_has_a_chart_with_its_terms(
    head: str, output: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, regions=("nose", "mouth"))
    model = Recognizer(build_model(config, "ab", outputs={head: [output]}))
    photo = tmp_path / "a.png"
    photo.write_bytes(encode_png(draw_face("fear", 0, 48)[0]))

    options = PhotoOptions("crop", "landmarks", workers=0)
    ((photos, chunks),) = model.find([photo], options)
    (classified,) = model.classify([(photos, chunks)], [photo], "landmarks")
    found = [(face, None) for face in classified]
    ((face, _, evidence),) = explain_faces(model, found, chunks, ExplainOptions("ablation"))
    chart = evidence.charts[head]
    bias = fixed_charts(model)[head]["bias"]
    assert len(chart["face"]) == len(chart["regions"]) == len(bias) == 1
    assert chart["values"] == pytest.approx([*face.outputs.values()], abs=1e-3)
