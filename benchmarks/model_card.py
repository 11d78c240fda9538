"""Measures a model on a split of FERPlus: what its card says.

make card FERPLUS=ferplus.zip
python -m benchmarks.model_card faces.parquet fer_vit/weights/ferplus-small --write

Without `--write` the figures are only printed; with it they take their place in the card, README.md in the model's
folder. The time per face is measured as well: leave the machine alone.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import EvalResult, ModelCard
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.robustness import markdown, robustness
from fer_vit.evaluate.labelled import evaluate_logits, fit_temperature
from fer_vit.predict.graphs import example
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.hub import CARD_FILE, find_folder

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
RESAMPLES = 2000
Floats = NDArray[np.float64]


def summary(confusion: Floats) -> Floats:
    """Accuracy, macro F1 and UAR (..., 3) of confusion matrices (..., C, C), targets in rows, without empty classes."""
    hit = np.einsum("...cc->...c", confusion)
    images, guesses = confusion.sum(-1), confusion.sum(-2)
    with np.errstate(invalid="ignore"):
        recall = hit / images  # NaN without images
        f1 = 2 * hit / (images + guesses)  # NaN with neither images nor guesses
    return np.stack([hit.sum(-1) / images.sum(-1), np.nanmean(f1, -1), np.nanmean(recall, -1)], axis=-1)


def confusion_matrix(target: NDArray[np.int64], guess: NDArray[np.int64], classes: int) -> Floats:
    """Counts (C, C), targets in rows."""
    return np.bincount(target * classes + guess, minlength=classes**2).reshape(classes, classes).astype(float)


def intervals(target: NDArray[np.int64], guess: NDArray[np.int64], classes: int) -> Floats:
    """95 % bootstrap intervals (2, 3) of what `summary` returns, over the images."""
    rng = np.random.default_rng(0)
    draws = (rng.integers(0, len(target), len(target)) for _ in range(RESAMPLES))
    return np.quantile(
        [summary(confusion_matrix(target[draw], guess[draw], classes)) for draw in draws], (0.025, 0.975), axis=0
    )


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
    labels, classes = model.labels, len(model.labels)
    logits, shares = evaluate_logits(model, manifest)
    mirrored, _ = evaluate_logits(model, manifest, mirrored=True)
    target = shares.argmax(-1)
    truth, guess = target.numpy(), logits.argmax(-1).numpy()
    both = (logits.softmax(-1) + mirrored.softmax(-1)).argmax(-1).numpy()
    confusion = confusion_matrix(truth, guess, classes)

    lines = [f"{len(truth):,} images. In brackets: 95 % intervals by bootstrap over the images.", ""]
    lines += ["| | accuracy | macro F1 | UAR |", "| --- | --- | --- | --- |"]
    for name, some in (("the model", guess), ("averaged with the mirrored face", both)):
        values, (low, high) = summary(confusion_matrix(truth, some, classes)), intervals(truth, some, classes)
        cells = [f"{v:.1%} ({lo:.1%} to {hi:.1%})" for v, lo, hi in zip(values, low, high, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")

    temperature = model.net.temperature
    raw, fitted, crossed = calibration(logits, target, temperature)
    loss = float(F.cross_entropy(logits / temperature, target))
    lines += [
        "",
        f"Calibration: expected calibration error {raw:.3f} without a temperature, {fitted:.3f} with the stored one of "
        f"{temperature:.3f}; {crossed:.3f} when each half of the images uses the temperature fitted on the other "
        f"half. Cross-entropy {loss:.3f}.",
        "",
        "| expression | images | recall | precision |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row, label in enumerate(labels):
        hit, images, guesses = confusion[row, row], confusion[row].sum(), confusion[:, row].sum()
        precision = f"{hit / guesses:.1%}" if guesses else "never predicted"
        lines.append(f"| {label} | {images:.0f} | {hit / max(images, 1):.1%} | {precision} |")
    lines += ["", "Rows: what people voted for. Columns: what the model predicts.", "", f"| | {' | '.join(labels)} |"]
    lines.append("| --- |" + " ---: |" * classes)
    for label, row in zip(labels, confusion, strict=True):
        lines.append(f"| {label} | {' | '.join(f'{count:.0f}' for count in row)} |")

    times = [1000 * value for value in seconds_per_face(model)]
    low, high = np.quantile(times, (0.05, 0.95))
    lines += [
        "",
        "The images altered, with faces and landmarks found again by YuNet (see benchmarks/robustness.py):",
        "",
    ]
    lines += [markdown(robustness(model, manifest)).rstrip(), ""]
    lines.append(f"One face on one CPU core: {median(times):.1f} ms ({low:.1f} to {high:.1f}), network only, float32.")
    accuracy, f1, uar = summary(confusion)
    return "\n".join(lines) + "\n", {"accuracy": accuracy, "macro F1": f1, "UAR": uar}


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
    before, _, rest = card.text.partition(BEGIN)
    card.text = f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"
    card.save(path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, help="FERPlus, as `fer-vit prepare` wrote it")
    parser.add_argument("model", help="a folder, a checkpoint or a name out of `fer-vit models`")
    parser.add_argument("--write", action="store_true", help="put the figures into the model's card")
    args = parser.parse_args()
    card = find_folder(args.model) / CARD_FILE if args.write else None
    text, figures = measure(load(args.model, "cpu"), args.manifest)
    print(text)
    if card is not None:
        write_card(card, text, figures)


if __name__ == "__main__":
    main()
