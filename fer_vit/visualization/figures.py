"""Writes figures of faces for papers, beside the page of a report."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fer_vit.heads import MOVEMENTS, marked
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView, FigureKind
from fer_vit.report.records import Evidence
from fer_vit.visualization.charts import fixed_head

LOGGER = logging.getLogger("fer_vit")


@dataclass(frozen=True)
class FigureOptions:
    """Which figures are written.

    Attributes:
        kind: The format; None: no figures.
        faces: The numbers of faces in the names of the files in `photos`; empty: all faces.
    """

    kind: FigureKind | None = None
    faces: Sequence[int] = ()

    def includes(self, number: int) -> bool:
        """Returns whether a face gets figures."""
        return self.kind is not None and (not self.faces or number in self.faces)

    def check_written(self, faces: int) -> None:
        """Logs a warning about the numbers that exceed the report's `faces` faces."""
        missing = [number for number in self.faces if not 0 <= number < faces]
        if missing:
            names = ", ".join(map(str, missing))
            LOGGER.warning(f"No figures of {names}: the faces have the numbers 0 to {faces - 1}.")


NO_FIGURES = FigureOptions()


def save_figures(
    folder: Path,
    number: int,
    view: FaceView,
    evidence: Evidence,
    model: Recognizer,
    options: FigureOptions,
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
        path = folder / "figures" / f"{number:06d}-{name}.{options.kind}"
        save_figure(figure, path)
