"""What `visualize --heads` writes: what every attention head does, per face and on average."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pil
from torch import Tensor

from fer_vit.data.sample import Batch
from fer_vit.explain.heads import HeadRoles, head_roles
from fer_vit.explain.trace import Trace
from fer_vit.geometry import Array
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.heads import HeadMap, distance_figure, heads_figure
from fer_vit.report.relations import relations_figure
from fer_vit.report.table import TableWriter

JOINED = 0.4
"""Two regions are joined in the picture of a head when what they take from one another adds up to this share."""


class HeadWriter:
    """Draws the heads of face after face, and adds them up.

    Args:
        folder: The report; pictures of faces go to its folder `heads`.
        model: The model.
    """

    def __init__(self, folder: Path, model: Recognizer) -> None:
        self.folder = folder
        self.model = model
        self.faces = 0
        self.roles: HeadRoles | None = None  # sums over the faces
        self.crop: Tensor | None = None
        self.boxes = torch.zeros(len(model.crop_spec.regions), 4, dtype=torch.float64)
        self.together = torch.zeros(*[len(model.crop_spec.regions)] * 2, dtype=torch.float64)  # faces that show both
        (folder / "heads").mkdir()

    def add(self, part: Batch, seen: Trace, views: Sequence[FaceView]) -> None:
        """Takes the faces of a batch that the model has `seen`."""
        roles = head_roles(seen)
        for row, view in enumerate(views):
            face = HeadRoles(*(value[row].double().cpu() for value in roles))
            label, confidence = ranked(view.probabilities)[0]
            title = f"{view.name}, face {view.face}: {label} {confidence:.0%}"
            figure = heads_figure(view, title, list(self._rows(face, set(view.regions))))
            figure.save(self.folder / "heads" / f"{self.faces:06d}.jpg", quality=88)
            self._sum(face, part.image[row], part.boxes[row], part.valid[row])

    def _sum(self, face: HeadRoles, crop: Tensor, boxes: Tensor, valid: Tensor) -> None:
        self.faces += 1
        crop = crop.double().cpu()
        self.crop = crop if self.crop is None else self.crop + crop
        self.roles = face if self.roles is None else HeadRoles(*(a + b for a, b in zip(self.roles, face, strict=True)))
        self.boxes += torch.where(valid[:, None], boxes, 0.0).double().cpu()
        self.together += torch.outer(valid, valid).double().cpu()

    def write(self) -> list[Pil.Image]:
        """Writes `heads*.png` and `heads*.csv`: means over all faces. Returns the pictures."""
        if self.roles is None or self.crop is None:
            return []
        mean = HeadRoles(*(value / self.faces for value in self.roles))
        relations = self.roles.relations / self.together  # NaN for a pair that no face shows
        mean = mean._replace(relations=relations)
        spec, seen = self.model.crop_spec, self.together.diag()
        names = [name for name, faces in zip(spec.regions, seen, strict=True) if faces]
        boxes = (self.boxes / seen[:, None].clamp(min=1)).numpy()
        view = FaceView(
            name="",
            face=0,
            photo=(self.crop / self.faces * 255).round().byte().permute(1, 2, 0).numpy(),
            box=None,
            to_crop=np.eye(2, 3),
            crop_size=spec.size,
            heat=np.zeros((0, 0)),
            regions={name: boxes[spec.regions.index(name)] for name in names},
            shares={},
            probabilities={},
        )
        title = f"Where the heads look: mean over {self.faces:,} face{'s' * (self.faces != 1)}"
        pictures = {
            "heads.png": heads_figure(view, title, list(self._rows(mean, set(names)))),
            "heads_distance.png": Pil.fromarray(distance_figure(mean.distance.numpy(), spec.size)),
        }
        if len(names) > 1:
            matrices = {
                f"block {b + 1}, head {h + 1}": relations[b, h].numpy() for b, h in np.ndindex(*relations.shape[:2])
            }
            figure = relations_figure(matrices, spec.regions, relations.shape[1])
            pictures["heads_relations.png"] = Pil.fromarray(figure)
        for name, picture in pictures.items():
            picture.save(self.folder / name)
        self._write_tables(mean)
        return list(pictures.values())

    def _rows(self, roles: HeadRoles, present: set[str]) -> Iterator[tuple[str, list[HeadMap]]]:
        """The maps of a face, or of the mean face, as rows of a figure."""
        blocks, heads = roles.distance.shape
        for block in range(blocks):
            captions = [f"head {head + 1}: {far:.0f} px" for head, far in enumerate(roles.distance[block].tolist())]
            found = zip(captions, roles.maps[block], roles.relations[block].numpy(), strict=True)
            yield f"block {block + 1}", [self._map(*one, present) for one in found]
        columns = max(heads, 4)
        for start in range(0, len(roles.expressions), columns):
            queries = zip(self.model.labels[start:], roles.expressions[start : start + columns], strict=False)
            yield "expressions", [self._map(label, scores, None, present) for label, scores in queries]

    def _map(self, caption: str, scores: Tensor, relations: Array | None, present: set[str]) -> HeadMap:
        shares = {name: share for name, share in self._shares(scores).items() if name in present}
        lines: dict[tuple[str, str], float] = {}
        if relations is not None:
            regions = [(place, name) for place, name in enumerate(self.model.crop_spec.regions) if name in present]
            pairs = {(a, b): relations[i, j] + relations[j, i] for (i, a), (j, b) in combinations(regions, 2)}
            lines = {pair: share for pair, share in pairs.items() if share >= JOINED}
        return HeadMap(caption, self.model.net.layout.patch_map(scores).numpy(), shares, lines)

    def _shares(self, scores: Tensor) -> dict[str, float]:
        """Share of every region out of scores per token (T,); empty for a model without regions."""
        found = self.model.net.layout.region_scores(scores).tolist()
        return dict(zip(self.model.crop_spec.regions, found, strict=False))

    def _write_tables(self, mean: HeadRoles) -> None:
        regions = self.model.crop_spec.regions
        shares = self._shares(mean.maps[0, 0])
        columns = {"block": int, "head": int, "distance_px": float, "patches": float, **dict.fromkeys(shares, float)}
        pairs = {"block": int, "head": int, "region": str, "takes_from": str, "mean": float}
        with (
            TableWriter(self.folder / "heads.csv", columns) as table,
            TableWriter(self.folder / "heads_relations.csv", pairs) as related,
        ):
            for (block, head), distance in np.ndenumerate(mean.distance.numpy()):
                scores, which = mean.maps[block, head], {"block": block + 1, "head": head + 1}
                patches = float(self.model.net.layout.patch_map(scores).sum())
                table.write([{**which, "distance_px": distance, "patches": patches, **self._shares(scores)}])
                for (i, j), share in np.ndenumerate(mean.relations[block, head].numpy()):
                    cell = None if np.isnan(share) else share
                    related.write([{**which, "region": regions[i], "takes_from": regions[j], "mean": cell}])
