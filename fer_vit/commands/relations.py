"""What `visualize` writes of the relations between regions: means by predicted expression."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image as Pil
from torch import Tensor

from fer_vit.data.sample import Batch
from fer_vit.explain.relations import relations
from fer_vit.recognizer import Recognizer
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.relations import relations_figure


class RelationWriter:
    """Adds up which regions take from which, face after face.

    Args:
        folder: The report.
        model: The model.
    """

    def __init__(self, folder: Path, model: Recognizer) -> None:
        self.folder = folder
        self.model = model
        self.sums: dict[str, Tensor] = {}  # (R, R), of the rows of regions that are there
        self.seen: dict[str, Tensor] = {}  # (R, 1): how often each region is there
        self.faces: dict[str, int] = {}

    def add(self, parts: Sequence[Batch], views: Sequence[FaceView]) -> None:
        """Takes faces; `views` are those of `parts`, in order."""
        left = iter(views)
        for part in parts:
            flow = relations(self.model.net, part.image, part.boxes, part.valid).double().cpu()
            for row, view in zip(range(len(part.path)), left, strict=False):
                label, there = ranked(view.probabilities)[0][0], part.valid[row, :, None].double().cpu()
                self.sums[label] = self.sums.get(label, 0) + flow[row]
                self.seen[label] = self.seen.get(label, 0) + there
                self.faces[label] = self.faces.get(label, 0) + 1

    def write(self) -> list[Pil.Image]:
        """Writes `relations.png` and `relations.csv`. Returns the pictures."""
        regions = self.model.crop_spec.regions
        labels = [label for label in self.model.labels if label in self.faces]
        if not labels or len(regions) < 2:
            return []
        means = {label: (self.sums[label] / self.seen[label].clamp(min=1)).numpy() for label in labels}
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
