"""Measures a model on a split of FERPlus: what its card says.

make card FERPLUS=ferplus.zip
python -m benchmarks.model_card ferplus.parquet ferplus-fairface-small --fairface fairface.parquet --write

Without `--write` the figures are only printed; with it they take their place in the card, README.md in the model's
folder. The time per face is measured as well: leave the machine alone.
"""

import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from huggingface_hub import EvalResult, ModelCard
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.agreement import agreement, some_faces
from benchmarks.agreement import markdown as agreement_table
from benchmarks.machine import arguments
from fer_vit.data.manifest import Manifest
from fer_vit.evaluate.faces import predict_manifest
from fer_vit.evaluate.hard import hard_faces, hard_results
from fer_vit.evaluate.labelled import evaluate_logits, fit_temperature
from fer_vit.evaluate.scores import confusion_matrix, scored
from fer_vit.evaluate.writer import class_table, confusion_table, score_table
from fer_vit.predict.graphs import example
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.report.table import markdown
from fer_vit.store.hub import CARD_FILE, find_folder

SCORES = ("accuracy", "macro F1", "UAR")


def calibration(logits: Tensor, target: Tensor, temperature: float) -> tuple[float, float, float]:
    """Expected calibration error (15 bins) without a temperature, with the given one, and with one from the other half.

    The last is the honest one: every image uses a temperature that was fitted without it.
    """

    def error(scaled: Tensor) -> float:
        return float(multiclass_calibration_error(scaled.softmax(-1), target, logits.shape[1], n_bins=15))

    half = torch.arange(len(target)) % 2 == 0
    crossed = torch.empty_like(logits)
    for part in (half, ~half):
        crossed[part] = logits[part] / fit_temperature(logits[~part], target[~part])
    return error(logits), error(logits / temperature), error(crossed)


def seconds_per_face(model: Recognizer, rounds: int = 300) -> list[float]:
    """Seconds for one face on one core, once a round."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    inputs, seconds = example(model, 1), []
    with torch.inference_mode():
        for _ in range(rounds + 20):
            start = time.perf_counter()
            model(*inputs)
            seconds.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return seconds[20:]


def measure(model: Recognizer, manifest: Path) -> tuple[str, dict[str, float]]:
    """Returns the measured part of a card as Markdown, and the figures for its metadata."""
    rows = Manifest.read(manifest, ["val"]).split("val")
    faces = predict_manifest(model, rows, "val")
    assert faces.shares is not None
    logits, shares = evaluate_logits(model, manifest)
    mirrored, _ = evaluate_logits(model, manifest, mirrored=True)
    both = model.net.probabilities(torch.stack([logits, mirrored])).mean(0).double().numpy()
    found = scored(faces.probabilities, faces.shares, model.labels)
    subsets = {"the model": found, "averaged with the mirrored face": scored(both, faces.shares, model.labels)}
    if (twins := rows.twins("val")).any():
        name = f"the model, without {twins.sum():,} images that had a twin in train"
        subsets[name] = scored(faces.probabilities[~twins], faces.shares[~twins], model.labels)
    table = score_table("", {name: {score: one[score] for score in SCORES} for name, one in subsets.items()})
    raw, fitted, crossed = calibration(logits, shares.argmax(-1), model.net.temperature)
    confusion = confusion_matrix(faces.probabilities, faces.shares)
    hard = hard_results(hard_faces(model, rows, faces.shares.argmax(1)))
    times = [1000 * value for value in seconds_per_face(model)]
    low, high = np.quantile(times, (0.05, 0.95))
    text = f"""{len(faces.paths):,} images. In brackets: 95 % intervals by bootstrap over the images.

{markdown(table)}
Calibration: expected calibration error {raw:.3f} without a temperature, {fitted:.3f} with the stored one of \
{model.net.temperature:.3f}; {crossed:.3f} when each half of the images uses the temperature fitted on the other half. \
Cross-entropy {found["cross-entropy"]["mean"]:.3f}.

{markdown(class_table(found, confusion, model.labels))}
Rows: what people voted for. Columns: what the model predicts.

{markdown(confusion_table(confusion, model.labels))}
The images altered, with faces and landmarks found again (`fer-vit evaluate --hard`), and the difference from \
the same faces as they are; turns are the mean of both directions:

{markdown(score_table("images", hard))}
One face on one CPU core: {median(times):.1f} ms ({low:.1f} to {high:.1f}), network only, float32.
"""
    return text, {score: float(found[score]["mean"] or 0) for score in SCORES}


def write_card(path: Path, text: str, figures: dict[str, float]) -> None:
    """Puts the measured part and the figures into a card."""
    card = ModelCard.load(path)
    card.data.model_name = path.parent.name
    card.data.eval_results = [
        EvalResult(
            task_type="image-classification",
            dataset_type="ferplus",
            dataset_name="FERPlus validation",
            metric_type=name.lower().replace(" ", "_"),
            metric_name=name,
            metric_value=round(float(value), 4),
        )
        for name, value in figures.items()
    ]
    card.text = replaced(card.text, "measured", text)
    card.save(path)


def replaced(card: str, part: str, text: str) -> str:
    """Returns a card with one of its measured parts replaced, or added."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, _, rest = card.partition(begin)
    return f"{before}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path, help="FERPlus, as `fer-vit prepare` wrote it")
    parser.add_argument("model", help="a folder, a checkpoint or a name out of `fer-vit models`")
    parser.add_argument(
        "--fairface", type=Path, help="FairFace, as `fer-vit prepare` wrote it: does a face keep its label?"
    )
    parser.add_argument("--write", action="store_true", help="put the figures into the model's card")
    args = parser.parse_args()
    card = find_folder(args.model) / CARD_FILE if args.write else None
    model = load(args.model, "cpu")
    text, figures = measure(model, args.manifest)
    if args.fairface:
        kept = agreement(model, some_faces(args.fairface))
        text += f"\n300 faces of FairFace, changed and found again:\n\n{agreement_table(kept)}"
    print(text)
    if card is not None:
        write_card(card, text, figures)


if __name__ == "__main__":
    main()
