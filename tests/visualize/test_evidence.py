from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fer_vit.explain.methods import METHODS, explain
from fer_vit.explain.trace import attention_views, interactions, trace
from fer_vit.face.image import encode_png, read_image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.sources.drawn import draw_face
from fer_vit.visualize.evidence import LabelChoice, explain_faces, explain_labels

Faces = tuple[Tensor, Tensor, Tensor]


@pytest.mark.parametrize("labels", ["predicted", "all"])
@pytest.mark.parametrize(
    ("method", "bf16", "error"), [*((name, False, 1e-5) for name in METHODS), ("pixels", True, 0.02)]
)
def test_the_predicted_label_or_all_are_explained_and_the_first_rather_than_the_second(
    method: str,
    bf16: bool,
    error: float,
    labels: LabelChoice,
    net: RegionViT,
    faces: Faces,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(explain_labels.__globals__, "has_bf16", lambda device: bf16)
    seen = trace(net, *faces)
    found = list(explain_labels(net, seen, method, labels))
    views, eye = attention_views(seen, interactions(net, seen)), torch.eye(4)
    order = net(*faces).argsort(1, descending=True)
    for row in range(2):
        assert found[row].order == order[row].tolist()
        for array, tensor in zip(found[row].attention, views, strict=True):
            assert np.allclose(array, tensor[row], atol=1e-6, equal_nan=True)
        for label, (shares, heat) in found[row].labels.items():
            expected = explain(net, *faces, method, eye[label].expand(2, 4))
            assert np.allclose(shares, expected.shares[row], atol=error)
            cells = torch.nn.functional.adaptive_avg_pool2d(expected.heat[row, None], 24)[0]  # 24 x 24 means
            assert np.allclose(heat, cells, atol=error)
        assert list(found[row].labels) == order[row].tolist()[: 4 if labels == "all" else 1]
        why = (eye[order[row, 0]] - eye[order[row, 1]]).expand(2, 4)
        assert np.allclose(found[row].contrast[0], explain(net, *faces, method, why).shares[row], atol=error)


@pytest.mark.parametrize("gone", [False, True])
def test_a_face_is_shown_in_its_photo_as_predicted(gone: bool, net: RegionViT, tmp_path: Path) -> None:
    paths = [tmp_path / f"{label}.png" for label in ("happiness", "anger", "fear")]
    for seed, path in enumerate(paths):
        path.write_bytes(encode_png(draw_face(path.stem, seed, 48)[0]))
    model = Recognizer(net)
    options = PhotoOptions("crop", "none", workers=0)
    results = model.predict(paths, face="crop", detector="none", workers=0)
    ((photos, chunks),) = model.find(paths, options)
    pixels = [read_image(path) for path in paths]
    if gone:
        for path in paths:
            path.unlink()
    classified = model.classify([(photos, chunks)], paths)
    found = [(face, None) for photo in classified for face in photo.faces]
    seen = list(explain_faces(model, found, chunks, "relevance"))
    assert [face.path for face, _, _ in seen] == [str(path) for path in paths]
    for row, ((face, view, _), result) in enumerate(zip(seen, results, strict=True)):
        assert (view.face, view.box, view.crop_size) == (0, None, 32)
        assert view.probabilities == face.probabilities == pytest.approx(result.probabilities, abs=1e-6)
        assert view.regions.keys() == result.regions.keys()
        assert all(np.array_equal(box, result.regions[name]) for name, box in view.regions.items())
        if gone:  # as the model saw it
            assert np.allclose(view.photo.transpose(2, 0, 1) / 255, chunks[0].image[row], atol=0.5 / 255)
            assert np.array_equal(view.to_crop, np.eye(2, 3))
        else:
            assert np.array_equal(view.photo, pixels[row])
            assert np.array_equal(view.to_crop, result.to_crop)
