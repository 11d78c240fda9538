"""What `visualize` writes of the relations between regions: means by predicted expression."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image as Pil

from fer_vit.face.geometry import Array
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.html import Evidence
from fer_vit.report.relations import relations_figure


class RelationWriter:
    """Adds up which regions take from which, face after face.

    Args:
        folder: The report.
        labels: The expressions in order.
        regions: The R regions in order.
    """

    def __init__(self, folder: Path, labels: Sequence[str], regions: Sequence[str]) -> None:
        self.folder = folder
        self.labels = labels
        self.regions = regions
        self.sums: dict[str, Array] = {}  # (R, R), of the rows of regions that are there
        self.seen: dict[str, Array] = {}  # (R, 1): how often each region is there
        self.faces: dict[str, int] = {}

    def add(self, view: FaceView, evidence: Evidence) -> None:
        """Takes a face."""
        label = ranked(view.probabilities)[0][0]
        self.sums[label] = self.sums.get(label, 0.0) + evidence.relations
        there = np.array([[name in view.regions] for name in self.regions], float)
        self.seen[label] = self.seen.get(label, 0.0) + there
        self.faces[label] = self.faces.get(label, 0) + 1

    def write(self) -> list[Pil.Image]:
        """Writes `relations.png` and `relations.csv`. Returns the pictures."""
        regions, labels = self.regions, [label for label in self.labels if label in self.faces]
        if not labels or len(regions) < 2:
            return []
        means = {label: self.sums[label] / self.seen[label].clip(1) for label in labels}
        with (self.folder / "relations.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["predicted", "faces", "region", *regions])
            for label, mean in means.items():
                for name, row in zip(regions, mean.tolist(), strict=True):
                    table.writerow([label, self.faces[label], name, *(f"{value:.4f}" for value in row)])
        buffer = io.BytesIO()
        relations_figure(means, self.faces, regions).savefig(buffer, format="png")
        (self.folder / "relations.png").write_bytes(buffer.getvalue())
        return [Pil.open(buffer)]
