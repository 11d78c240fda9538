"""What `visualize` writes of the relations between regions: means by predicted expression."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image as Pil

from fer_vit.geometry import Array
from fer_vit.intervals import mean_intervals
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.html import Evidence
from fer_vit.report.relations import relations_figure
from fer_vit.report.table import TableWriter

COLUMNS = {"predicted": str, "region": str, "takes_from": str, "faces": int, "mean": float, "low": float, "high": float}


class RelationWriter:
    """Collects which regions take from which, face after face.

    Args:
        folder: The report.
        labels: The expressions in order.
        regions: The R regions in order.
    """

    def __init__(self, folder: Path, labels: Sequence[str], regions: Sequence[str]) -> None:
        self.folder = folder
        self.labels = labels
        self.regions = regions
        self.matrices: dict[str, list[np.ndarray]] = {}  # (R, R) each, NaN where one of a pair is missing

    def add(self, view: FaceView, evidence: Evidence) -> None:
        """Takes a face."""
        present = np.array([name in view.regions for name in self.regions])
        matrix = np.where(np.outer(present, present), evidence.relations, np.nan).astype(np.float32)
        self.matrices.setdefault(ranked(view.probabilities)[0][0], []).append(matrix)

    def write(self) -> list[Pil.Image]:
        """Writes `relations.png` and `relations.csv`. Returns the pictures."""
        labels = [label for label in self.labels if label in self.matrices]
        if not labels or len(self.regions) < 2:
            return []
        pairs = [(region, other) for region in self.regions for other in self.regions]
        means: dict[str, Array] = {}
        with TableWriter(self.folder / "relations.csv", COLUMNS) as table:
            for label in labels:
                faces = self.matrices[label]
                intervals = mean_intervals(np.stack(faces).reshape(len(faces), -1).astype(float))
                for (region, other), interval in zip(pairs, intervals, strict=True):
                    table.write([{"predicted": label, "region": region, "takes_from": other, **interval}])
                title = f"{label}, {len(faces):,} face{'s' * (len(faces) != 1)}"
                means[title] = np.array([interval["mean"] for interval in intervals], float).reshape(faces[0].shape)
        picture = Pil.fromarray(relations_figure(means, self.regions, 4))
        picture.save(self.folder / "relations.png")
        return [picture]
