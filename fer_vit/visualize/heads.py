"""What `visualize --heads` writes: what every attention head does, per face and on average."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pil
from torch import Tensor

from fer_vit.explain.heads import HeadRoles
from fer_vit.geometry import Array
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.tables import counted
from fer_vit.report.charts import distance_figure, relations_figure
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.heads import HeadMap, heads_figure
from fer_vit.report.table import TableWriter
from fer_vit.visualize.evidence import as_image


class HeadWriter:
    """Draws the attention heads of each face into the report's folder `heads`, and adds them up for the means."""

    def __init__(self, folder: Path, model: Recognizer) -> None:
        self.folder = folder
        self.model = model
        self.regions = model.crop_spec.regions
        self.faces = 0
        self.roles: HeadRoles | None = None  # sums over faces, as are all below
        self.crop = torch.zeros(3, model.crop_spec.size, model.crop_spec.size, dtype=torch.float64)
        self.boxes = np.zeros((len(self.regions), 4))
        self.together = np.zeros((len(self.regions),) * 2)  # number of faces that show both regions
        (folder / "heads").mkdir()

    def add(self, view: FaceView, crop: Tensor, roles: HeadRoles) -> None:
        """Adds a face, its crop (3, S, S) and what the heads do."""
        label, confidence = ranked(view.probabilities)[0]
        rows = list(self._rows(roles, set(view.regions)))
        figure = heads_figure(view, f"{view.name}, face {view.face}: {label} {confidence:.0%}", rows)
        figure.save(self.folder / "heads" / f"{self.faces:06d}.jpg", quality=88)
        self.faces += 1
        self.roles = HeadRoles(*map(torch.add, self.roles, roles)) if self.roles else roles
        self.crop += crop.double().cpu()
        present = np.array([name in view.regions for name in self.regions], bool)
        self.together += np.outer(present, present)
        for index in present.nonzero()[0]:
            self.boxes[index] += view.regions[self.regions[index]]

    def write(self) -> list[Pil.Image]:
        """Writes `heads*.png` and `heads*.csv`: means over all faces. Returns the pictures."""
        if self.roles is None:
            return []
        mean = HeadRoles(*(value / self.faces for value in self.roles))
        relations = self.roles.relations / torch.from_numpy(self.together)  # NaN for a pair that no face shows
        mean = mean._replace(relations=relations)
        view = self._mean_view()
        title = f"Where the heads look: mean over {counted(self.faces, 'face')}"
        pictures = {
            "heads.png": heads_figure(view, title, list(self._rows(mean, set(view.regions)))),
            "heads_distance.png": Pil.fromarray(distance_figure(mean.distance.numpy(), view.crop_size)),
        }
        if len(view.regions) > 1:
            names = np.ndindex(*relations.shape[:2])
            matrices = {f"block {b + 1}, head {h + 1}": relations[b, h].numpy() for b, h in names}
            figure = relations_figure(matrices, self.regions, relations.shape[1])
            pictures["heads_relations.png"] = Pil.fromarray(figure)
        for name, picture in pictures.items():
            picture.save(self.folder / name)
        self._write_tables(mean)
        return list(pictures.values())

    def _mean_view(self) -> FaceView:
        faces = self.together.diagonal()  # number of faces that show each region
        boxes = self.boxes / faces[:, None].clip(1)
        return FaceView(
            photo=as_image(self.crop / self.faces),
            to_crop=np.eye(2, 3),
            crop_size=self.model.crop_spec.size,
            regions={name: box for name, box, count in zip(self.regions, boxes, faces, strict=True) if count},
        )

    def _rows(self, roles: HeadRoles, present: set[str]) -> Iterator[tuple[str, list[HeadMap]]]:
        """Yields the maps of a face, or of the mean face, as rows of a figure."""
        blocks, heads = roles.distance.shape
        for block in range(blocks):
            captions = [f"head {head + 1}: {far:.0f} px" for head, far in enumerate(roles.distance[block].tolist())]
            each = zip(captions, roles.maps[block], roles.relations[block].numpy(), strict=True)
            yield f"block {block + 1}", [self._map(*head, present) for head in each]
        columns, no_relations = max(heads, 4), np.zeros_like(self.together)
        for start in range(0, len(roles.expressions), columns):
            queries = zip(self.model.labels[start:], roles.expressions[start : start + columns], strict=False)
            yield "expressions", [self._map(label, scores, no_relations, present) for label, scores in queries]

    def _map(self, caption: str, scores: Tensor, relations: Array, present: set[str]) -> HeadMap:
        shares = {name: share for name, share in self._shares(scores).items() if name in present}
        there = [(index, name) for index, name in enumerate(self.regions) if name in present]
        mutual = {(a, b): relations[i, j] + relations[j, i] for (i, a), (j, b) in combinations(there, 2)}
        return HeadMap(caption, self.model.net.layout.patch_map(scores).numpy(), shares, mutual)

    def _shares(self, scores: Tensor) -> dict[str, float]:
        """Returns the share of every region from scores per token (T,); empty without region tokens."""
        shares = self.model.net.layout.region_scores(scores).tolist()
        return dict(zip(self.regions, shares, strict=False))

    def _write_tables(self, mean: HeadRoles) -> None:
        shares = self._shares(mean.maps[0, 0])
        columns = {"block": int, "head": int, "distance_px": float, "patches": float, **dict.fromkeys(shares, float)}
        pairs = {"block": int, "head": int, "region": str, "takes_from": str, "mean": float}
        with (
            TableWriter(self.folder / "heads.csv", columns) as table,
            TableWriter(self.folder / "heads_relations.csv", pairs) as relations,
        ):
            for (block, head), distance in np.ndenumerate(mean.distance.numpy()):
                scores, which = mean.maps[block, head], {"block": block + 1, "head": head + 1}
                patches = float(self.model.net.layout.patch_map(scores).sum())
                table.write([{**which, "distance_px": distance, "patches": patches, **self._shares(scores)}])
                for (i, j), share in np.ndenumerate(mean.relations[block, head].numpy()):
                    cell = None if np.isnan(share) else share
                    relations.write([{**which, "region": self.regions[i], "takes_from": self.regions[j], "mean": cell}])
