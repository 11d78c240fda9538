"""Faces of a manifest, which a model predicts.

N faces, K outputs.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from fer_vit.conformal import in_set
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.faces import as_objects
from fer_vit.geometry import Image
from fer_vit.labels import Merge, merge_names, merge_probabilities
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer
from fer_vit.tables.labelled import Labelled, pair_outputs


@dataclass(frozen=True, eq=False)
class ManifestFaces(Labelled):
    """The faces of a manifest, before or after the predictions of a model."""

    manifest: Manifest = field(kw_only=True)
    model: Recognizer = field(kw_only=True)
    merge: Merge | None = field(kw_only=True)  # how labels of the model are merged

    @property
    def has_sets(self) -> bool:
        """Whether predictions add the column `ambiguous`.

        The column needs prediction sets. They are calibrated for the model's own labels: a merge
        of labels excludes them.
        """
        return bool(self.model.thresholds) and self.merge is None

    def picture(self, index: int) -> Image:
        """Reads the picture of a face; raises FerVitError if that fails."""
        return self.manifest.image(int(self.rows[index]))

    def predict(self) -> "ManifestFaces":
        """Returns all faces of the manifest with the predictions of the model."""
        # not at the top: it needs PyTorch, and tables of predictions do not
        from fer_vit.data.dataset import FaceDataset, face_crops

        model = self.model
        dataset = FaceDataset(self.manifest, model.crop_spec)
        batches = face_crops(dataset, range(len(self.manifest)), FACES_PER_PASS)
        parts = [model.read(batch) for batch in batches]
        probabilities = np.concatenate([part.probabilities for part in parts])  # (N, C)
        if self.merge is not None:
            _, matrix = merge_names(model.labels, self.merge)
            probabilities = merge_probabilities(probabilities, matrix)
        columns = dict(self.columns)
        if self.has_sets:
            ambiguous = in_set(probabilities, model.thresholds).sum(1) != 1
            columns["ambiguous"] = as_objects(ambiguous.tolist())
        values = np.concatenate([part.outputs for part in parts])  # (N, K)
        outputs = model.outputs.by_column(values.T)
        targets = {output.column: pair.targets for output, pair in self.outputs.items()}
        return replace(
            self,
            probabilities=probabilities,
            columns=columns,
            outputs=pair_outputs(outputs, targets),
        )


def open_manifest(
    model: Recognizer, manifest: Manifest, split: Split, merge: Merge | None = None
) -> ManifestFaces:
    """Returns the faces of one split before they are predicted.

    Args:
        model: The model that will predict them.
        manifest: The faces.
        split: The split, for messages.
        merge: The new label of each label of the model; probabilities of merged labels are added.
            None: the model keeps its labels.

    Raises:
        FerVitError: There is no face, or a label is missing or unknown.
    """
    if not len(manifest):
        raise FerVitError(
            f"Expected faces in the {split} split of {manifest.path}, but got none. "
            "Name another `--split`."
        )
    labels = model.labels
    if merge is not None:
        names, _ = merge_names(model.labels, merge)
        labels = list(names)
    missing = [output for output in manifest.outputs if output not in model.outputs]
    notes = []
    if missing:
        counts = Counter(output.head for output in missing)
        heads = [f"{head} ({count})" for head, count in counts.items()]
        notes.append(
            f"{manifest.path}: targets without outputs of {model.name} are not measured: "
            f"{', '.join(heads)}."
        )
    # a face that no detector found has a score of 0, but may have landmarks
    has_landmarks = ~np.isnan(manifest.landmarks()[:, 0, 0])
    has_score = np.array(manifest.column("score"), float) != 0
    unknown = dict.fromkeys(model.outputs.columns, np.full(len(manifest), np.nan))
    targets = manifest.target_values()
    faces = ManifestFaces(
        labels=labels,
        paths=as_objects(manifest.image_names()),
        probabilities=np.full((len(manifest), len(labels)), np.nan),
        detected=has_landmarks & has_score,
        columns=manifest.describing_columns(),
        targets=manifest.model_targets(labels),
        rows=np.arange(len(manifest)),
        facts=model.conditions,
        notes=tuple(notes),
        outputs=pair_outputs(unknown, targets),
        manifest=manifest,
        model=model,
        merge=merge,
    )
    if faces.has_sets:
        faces.columns["ambiguous"] = as_objects([None] * len(manifest))
    return faces


def predict_manifest(
    model: Recognizer, manifest: Manifest, split: Split, merge: Merge | None = None
) -> ManifestFaces:
    """Predicts the faces of one split; arguments and errors as for `open_manifest`."""
    return open_manifest(model, manifest, split, merge).predict()
