"""Measures a model on FERPlus' validation split for its model card.

python -m benchmarks.model_card ferplus.parquet ferplus-fairface-small --write=true

Prints the results. `--write=true` also puts them into the card, README.md in the model's folder.
The time per face is measured, too: run nothing else meanwhile.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import EvalResult, ModelCard
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.machine import in_turns, run_main, spread
from fer_vit.data.dataset import FaceDataset, crop_mirrored, face_crops
from fer_vit.data.manifest import Manifest
from fer_vit.evaluation.evaluation_page import class_table, rows_table
from fer_vit.evaluation.evaluation_rows import make_rows
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.evaluation.robustness import altered_rows, read_altered
from fer_vit.evaluation.score import score_votes
from fer_vit.exporting.calibration import fit_temperature, labelled_batches, predict_logits
from fer_vit.heads import EXPRESSION
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer, load
from fer_vit.report.table import markdown
from fer_vit.stats.scores import confusion_matrix, is_recall, score_faces
from fer_vit.store.hub import CARD_FILE, fetch_folder

SCORES = ("accuracy", "macro F1", "UAR")
MEASURED = "FERPlus validation"


def crossed_probabilities(logits: Tensor, target: Tensor) -> Tensor:
    """Returns probabilities of each half of the images with a temperature that was fitted
    on the other half.
    """
    half = torch.arange(len(target)) % 2 == 0
    crossed = torch.empty_like(logits)
    for part in (half, ~half):
        crossed[part] = logits[part] / fit_temperature(logits[~part], target[~part])
    return crossed.softmax(-1)


def measure(model: Recognizer, manifest: Path) -> tuple[str, dict[str, float]]:
    """Returns the results section of a card as Markdown, and the scores for its metadata."""
    rows = Manifest.read(manifest).split("val")
    faces = predict_manifest(model, rows, "val")
    assert faces.targets is not None
    _, batches, shares = labelled_batches(model, rows)
    logits = predict_logits(model, batches)
    mirrored_faces = FaceDataset(rows, model.crop_spec, crop_mirrored)
    mirrored_batches = face_crops(mirrored_faces, range(len(rows)), FACES_PER_PASS)
    mirrored = predict_logits(model, mirrored_batches)
    both = model.net.probabilities(torch.stack([logits, mirrored])).mean(0).double().numpy()
    scores = score_faces(faces.probabilities, faces.targets, model.labels)
    subsets = {
        "the model": scores,
        "averaged with the mirrored face": score_faces(both, faces.targets, model.labels),
    }
    repeated = rows.near_duplicates("val")  # (N,)
    if repeated.any():
        name = f"the model, without {repeated.sum():,} near-duplicates of training images"
        subsets[name] = score_faces(
            faces.probabilities[~repeated], faces.targets[~repeated], model.labels
        )
    rows_of_table = []
    for name, subset in subsets.items():
        shown = {score: subset[score] for score in SCORES}
        rows_of_table += make_rows(EXPRESSION, "", name, shown)
    table = rows_table("", rows_of_table)

    target = shares.argmax(-1)
    temperature = model.net.settings.temperature
    error = partial(
        multiclass_calibration_error, target=target, num_classes=logits.shape[1], n_bins=15
    )
    raw = error(logits.softmax(-1))
    fitted = error((logits / temperature).softmax(-1))
    crossed = error(crossed_probabilities(logits, target))
    confusion = confusion_matrix(faces.probabilities, faces.targets)
    hits = read_altered(model, rows).hits(faces.targets.argmax(1), np.ones(len(rows), bool))
    altered = [
        row for row in altered_rows(EXPRESSION, "accuracy", hits) if row.measure == "accuracy"
    ]
    recalls = [row for row in make_rows(EXPRESSION, "", "", scores) if is_recall(row.measure)]
    torch.set_num_threads(1)
    (face,) = face_crops(FaceDataset(rows, model.crop_spec), [0], 1)
    (times,) = in_turns({"face": partial(model.read, face)}, 30).values()
    votes = rows_table("votes for the label", score_votes(faces))
    text = f"""{len(faces.paths):,} images; 95% bootstrap intervals over images in brackets.

{markdown(table)}
Expected calibration error {raw:.3f} without temperature, {fitted:.3f} with the stored \
temperature of {temperature:.3f}, \
{crossed:.3f} with temperatures fitted on the other half of the images. \
Cross-entropy {scores["cross-entropy"].mean:.3f}.

{markdown(class_table(recalls, confusion, model.labels))}
By votes for the label:

{markdown(votes)}
Altered images, with faces and landmarks detected again (`fer-vit evaluate --robustness`):

{markdown(rows_table("images", altered))}
One face on one CPU core: {spread([1000 * value for value in times], 1)} ms, network only, float32.
"""
    return text, {score: float(scores[score].mean or 0) for score in SCORES}


def write_card(path: Path, text: str, figures: dict[str, float]) -> None:
    """Writes results and scores into a card; results on other data stay."""
    card = ModelCard.load(path)
    card.data.model_name = path.parent.name
    elsewhere = [
        result for result in card.data.eval_results or [] if result.dataset_name != MEASURED
    ]
    result = partial(EvalResult, "image-classification", "ferplus", MEASURED)
    card.data.eval_results = [
        result(name.lower().replace(" ", "_"), round(float(value), 4), metric_name=name)
        for name, value in figures.items()
    ] + elsewhere
    begin = "<!-- measured: begin -->"
    end = "<!-- measured: end -->"
    before, _, rest = card.text.partition(begin)
    card.text = f"{before}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}"
    card.save(path)


def main(manifest: Path, model: str, write: bool = False) -> None:
    """Measures a model and prints or writes its results."""
    text, figures = measure(load(model, "cpu"), manifest)
    print(text)
    if write:
        write_card(fetch_folder(model) / CARD_FILE, text, figures)


if __name__ == "__main__":
    run_main(main)
