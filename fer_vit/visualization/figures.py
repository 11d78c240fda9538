"""Writes figures of faces for papers, beside the page of a report."""

from pathlib import Path

from fer_vit.heads import MOVEMENTS, marked
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FigureKind
from fer_vit.report.explained_face import Evidence, FaceView
from fer_vit.visualization.charts import fixed_head


def save_figures(
    folder: Path,
    number: int,
    view: FaceView,
    evidence: Evidence,
    model: Recognizer,
    kind: FigureKind,
) -> None:
    """Writes each figure of a face to `figures/NUMBER-NAME.KIND` in a report's folder."""
    # not at the top: matplotlib takes a second to load
    from fer_vit.report import face_figures
    from fer_vit.report.rendering import save_figure

    regions = model.crop_spec.regions
    target = evidence.targets[0]
    figures = {
        "drives": face_figures.attribution_figure(view, target, regions),
        "regions": face_figures.shares_figure(view, target, regions),
    }
    if evidence.attention is not None:
        figures["attention"] = face_figures.attention_figure(view, evidence.attention, regions)
    if MOVEMENTS in evidence.charts:
        shared = fixed_head(model.settings, evidence.terms, MOVEMENTS)
        figures["movements"] = face_figures.movements_figure(
            view,
            list(map(marked, shared["names"], shared["marks"])),
            evidence.charts[MOVEMENTS]["values"],
            shared["places"],
            regions,
        )
    (folder / "figures").mkdir(exist_ok=True)
    for name, figure in figures.items():
        path = folder / "figures" / f"{number:06d}-{name}.{kind}"
        save_figure(figure, path)
