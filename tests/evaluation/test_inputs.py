"""The faces that `evaluate` reads, by its options."""

from pathlib import Path
from typing import Any

import pytest

from fer_vit.errors import FerVitError
from fer_vit.evaluation.read_labelled import EvaluateOptions, read_labelled
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.store.model_folder import save_network

TABLE = "path,status,face,label,confidence,p_sadness,p_anger\na.png,ok,0,sadness,0.75,0.75,0.25\n"


def test_a_split_is_for_manifests_also_if_it_is_the_default_one(tmp_path: Path) -> None:
    table = tmp_path / "p.csv"
    table.write_text(TABLE)
    for split in ("val", "test"):
        with pytest.raises(FerVitError, match="split"):
            read_labelled(EvaluateOptions(table, split=split))
    assert read_labelled(EvaluateOptions(table)).paths == ["a.png"]


@pytest.mark.parametrize(
    ("conditions", "added"),
    [
        ({}, {"ambiguous"}),
        ({"classes": EXPRESSIONS[1:]}, set()),
        ({"merge": dict.fromkeys(EXPRESSIONS, "other") | {"happiness": "smile"}}, set()),
    ],
)
def test_labels_and_columns_are_known_before_a_manifest_is_predicted(
    conditions: dict[str, Any], added: set[str], drawn: Path, tmp_path: Path
) -> None:
    config = RegionViTConfig(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, tokens="patch"
    )
    level = [0.1] * (1 + len(EXPRESSIONS))  # for all faces, then for each label
    net = build_model(config, EXPRESSIONS, thresholds={"90": level, "95": level}, prior=[1 / 8] * 8)
    save_network(net, tmp_path / "model")
    model = str(tmp_path / "model")

    options = EvaluateOptions(drawn / "faces.parquet", checkpoint=model, **conditions)
    opened = read_labelled(options)
    assert not opened.predicted.any()
    assert {*opened.columns} & {"ambiguous"} == added
    predicted = opened.predict()
    assert predicted.predicted.all()
    assert predicted.labels == opened.labels
    assert {*predicted.columns} == {*opened.columns}
