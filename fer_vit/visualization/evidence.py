"""Explains the faces of a report, with PyTorch or without.

Shapes: B faces, O raw outputs, R regions, E explained scores for each face.
"""

from collections.abc import Iterator
from dataclasses import replace

from fer_vit.explain.methods import HEAT_GRID
from fer_vit.explain.regions import normalized_shares, spread_shares
from fer_vit.extras import is_installed, missing_extra
from fer_vit.faces import Crops
from fer_vit.predict.explanations import hide_regions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.explained_face import Evidence, FaceView
from fer_vit.visualization.charts import face_charts
from fer_vit.visualization.explained_scores import ExplainOptions, Scores
from fer_vit.visualization.report_parts import Part


def explain_faces(
    model: Recognizer, part: Part, options: ExplainOptions
) -> Iterator[tuple[FaceView, Evidence]]:
    """Yields each face of a part that is explained, and its explanation."""
    crops = part.crops
    if crops is None:
        return
    explained = explain_crops(model, crops, options)
    for row, (view, evidence) in enumerate(zip(part.views, explained, strict=True)):
        # not `Face.regions`: a network without region tokens is also explained by regions
        regions = {}
        boxes = crops.boxes[row].astype(float)  # (R, 4)
        for name, box, visible in zip(
            model.crop_spec.regions, boxes, crops.valid[row], strict=True
        ):
            if visible:
                regions[name] = box
        charts = face_charts(view.face, evidence.terms)
        yield replace(view, regions=regions), evidence._replace(charts=charts)


def explain_crops(model: Recognizer, crops: Crops, options: ExplainOptions) -> Iterator[Evidence]:
    """Yields the explanation of each crop, without charts.

    Without PyTorch, regions are hidden; there are no interactions, no attention and no terms.
    """
    if is_installed("torch"):
        # not at the top: PyTorch may be missing
        from fer_vit.visualization.network_evidence import explain_with_network

        yield from explain_with_network(model, crops, options)
        return
    raw = model.engine.run(crops)
    scores = Scores(model, model.decode(raw, crops).probabilities, options)
    falls = hide_regions(model.engine, crops, raw)  # (B, R, O)
    shares = normalized_shares(falls, scores.directions)  # (E, B, R)
    heat = spread_shares(shares, crops.boxes, model.crop_spec.size, HEAT_GRID)
    for row, ranking in enumerate(scores.order.tolist()):
        yield Evidence(ranking, scores.attributed(row, shares[:, row], heat[:, row]))


def check_explained(model: Recognizer) -> None:
    """Raises FerVitError when nothing can be explained without PyTorch, and that is missing."""
    if not model.crop_spec.regions and not is_installed("torch"):
        raise missing_extra(f"An explanation of {model.name}, which has no regions,", "torch")
