"""How far a model's doubts can be trusted: coverage of its sets, accuracy of what it is sure of, doubts of people.

make card FERPLUS=ferplus.zip
python -m benchmarks.unsure ferplus.parquet ferplus.zip fer_vit/weights/ferplus-fairface-small --write

Without `--write` the figures are only printed. With it they take their place in the card, the default model's picture
in docs, and the thresholds, fitted at the temperature that is there, in config.json; the weights are not touched.
(`fer-vit export --calibrate` fits a new temperature as well, which changes every probability.)
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from huggingface_hub import ModelCard
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import betabinom, bootstrap, entropy, spearmanr
from sklearn.metrics import roc_auc_score

from benchmarks.machine import arguments
from benchmarks.model_card import replaced
from fer_vit.conformal import COVERAGES, fit_thresholds, in_set
from fer_vit.data.manifest import Manifest
from fer_vit.evaluate.labelled import evaluate_logits, fit_temperature
from fer_vit.geometry import Array
from fer_vit.intervals import interval_text, mean_intervals
from fer_vit.predict.recognizer import load
from fer_vit.report.colours import ACCENT, FAINT
from fer_vit.report.table import markdown
from fer_vit.store.hub import CARD_FILE, CONFIG, DEFAULT, find_folder

ROOT = Path(__file__).parents[1]
SPLITS = 500
KEPT = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
"""Parts of the faces, the surest first."""
TAGGERS = ((10, 10), (9, 9), (8, 8), (7, 7), (0, 6))
"""How many of ten people agree on an expression, from and to."""


def calibrated(logits: Array, truth: NDArray[np.int64], temperature: float | None = None) -> tuple[Array, Any]:
    """Returns probabilities (N, C) and thresholds, at the temperature or the best one."""
    tensor = torch.from_numpy(logits)
    temperature = temperature or fit_temperature(tensor, torch.from_numpy(truth))
    shares = (tensor / temperature).softmax(-1).double().numpy()
    return shares, fit_thresholds(shares, truth)


def held_out(logits: Array, truth: NDArray[np.int64]) -> Iterator[dict[tuple[int, bool], tuple[Array, Array]]]:
    """Yields for random halves what sets from the other half do: by coverage, and whether by class.

    Each time: whether the truth is in the set, with NaN for faces of the other half (N,), and the sets' sizes likewise.
    """
    rng = np.random.default_rng(0)
    for _ in range(SPLITS):
        half = np.zeros(len(truth), bool)
        half[rng.permutation(len(truth))[: len(truth) // 2]] = True
        temperature = fit_temperature(torch.from_numpy(logits[half]), torch.from_numpy(truth[half]))
        shares, _ = calibrated(logits, truth, temperature)
        thresholds = fit_thresholds(shares[half], truth[half])
        found = {}
        for coverage in COVERAGES:
            for by_class in (False, True):
                among = in_set(shares, thresholds, coverage, by_class)
                hits, sizes = among[np.arange(len(truth)), truth].astype(float), among.sum(1).astype(float)
                hits[half] = sizes[half] = np.nan
                found[coverage, by_class] = hits, sizes
        yield found


def expected(faces: int, coverage: int) -> tuple[float, float]:
    """Returns between what the coverage of a half lies 95 % of the time (Vovk 2012; Angelopoulos and Bates 2021)."""
    fitted, tested = faces // 2, faces - faces // 2
    left_out = (fitted + 1) * (100 - coverage) // 100
    law = betabinom(tested, fitted + 1 - left_out, left_out)
    return law.ppf(0.025) / tested, law.ppf(0.975) / tested


def coverage_tables(logits: Array, truth: NDArray[np.int64], twins: NDArray[np.bool_], labels: list[str]) -> str:
    """Returns the tables of sets in halves that were not calibrated on."""
    rounds = list(held_out(logits, truth))
    rows = [["sets", "truth in the set", "in 95 % of the halves", "as theory has it", "expressions", "exactly one"]]
    parts = {label: truth == index for index, label in enumerate(labels)} | {"without a twin in train": ~twins}
    by_part = {name: [name, f"{part.sum():,}"] for name, part in parts.items()}
    for coverage in COVERAGES:
        low, high = expected(len(truth), coverage)
        for by_class in (False, True):
            hits = np.array([one[coverage, by_class][0] for one in rounds])
            sizes = np.array([one[coverage, by_class][1] for one in rounds])
            spread = np.quantile(np.nanmean(hits, 1), (0.025, 0.975))
            rows.append(
                [
                    f"{coverage} %{', by class' if by_class else ''}",
                    f"{np.nanmean(hits):.1%}",
                    f"{spread[0]:.1%} to {spread[1]:.1%}",
                    "-" if by_class else f"{low:.1%} to {high:.1%}",
                    f"{np.nanmean(sizes):.2f}",
                    f"{(sizes == 1).sum() / np.isfinite(sizes).sum():.1%}",
                ]
            )
            for name, part in parts.items():
                by_part[name].append(f"{np.nanmean(hits[:, part]):.0%}")
    head = ["truth in the set", "faces", "90 %", "90 %, by class", "95 %", "95 %, by class"]
    return f"{markdown(rows)}\n{markdown([head, *by_part.values()])}"


def surest_table(shares: Array, right: NDArray[np.bool_]) -> str:
    """Returns the accuracy of the surest faces."""
    order = np.argsort(-shares.max(1), kind="stable")
    rows = [["the surest", "least confidence", "accuracy"]]
    for part in KEPT:
        kept = order[: round(part * len(order))]
        (one,) = mean_intervals(right[kept, None].astype(float))
        rows.append([f"{part:.0%}", f"{shares[kept].max(1).min():.2f}", interval_text(one, ".1%")])
    return markdown(rows)


def agreement_rows(best: NDArray[np.int64], values: Array) -> list[list[str]]:
    """Returns how many faces have each agreement of ten people (N,), and the mean of values (N, M) with intervals."""
    rows = []
    for low, high in TAGGERS:
        which = (best >= low) & (best <= high)
        cells = [interval_text(one, ".1%") for one in mean_intervals(values[which])]
        rows.append([f"{high}" if low else f"{high} or fewer", f"{which.sum():,}", *cells])
    return rows


def read_votes(path: Path, names: list[str]) -> NDArray[np.int64]:
    """Reads the ten vote counts of validation images (N, 10) out of FERPlus, a folder or zip."""
    if path.is_dir():
        (table,) = path.rglob("FER2013Valid/label.csv")
        text = table.read_text("utf-8")
    else:
        with ZipFile(path) as file:
            (name,) = (name for name in file.namelist() if name.endswith("FER2013Valid/label.csv"))
            text = file.read(name).decode()
    votes = {f"FER2013Valid/{row[0]}": [*map(int, row[2:12])] for row in csv.reader(io.StringIO(text))}
    return np.array([votes[name] for name in names])


def picture(shares: Array, right: NDArray[np.bool_], best: NDArray[np.int64], unsure: NDArray[np.bool_]) -> Figure:
    """Draws accuracy against the part of the faces that is kept, and how often the model and people doubt together."""
    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    left, other = figure.subplots(1, 2)
    order = np.argsort(-shares.max(1), kind="stable")
    kept = np.arange(1, len(order) + 1)
    accuracy = right[order].cumsum() / kept
    error = 1.96 * np.sqrt(accuracy * (1 - accuracy) / kept)
    part, mean, error = (values[kept >= len(kept) // 20] for values in (kept / len(kept), accuracy, error))
    left.fill_between(part, mean - error, mean + error, color=FAINT, alpha=0.5, linewidth=0)
    left.plot(part, mean, color=ACCENT)
    sure = ~unsure
    left.plot(sure.mean(), right[sure].mean(), "o", color=ACCENT)
    left.annotate(
        "sets of exactly one", (sure.mean(), right[sure].mean()), (-12, -4), textcoords="offset points", ha="right"
    )
    left.set(xlabel="faces kept, the surest first", ylabel="accuracy", ylim=(0.85, 1.0))
    for place, (low, high) in enumerate(TAGGERS):
        (one,) = mean_intervals(unsure[(best >= low) & (best <= high), None].astype(float))
        other.plot([place, place], [one["low"], one["high"]], color=FAINT, linewidth=5)
        other.plot(place, one["mean"], "o", color=ACCENT)
    other.set_xticks(range(len(TAGGERS)), [str(high) if low else f"≤ {high}" for low, high in TAGGERS])
    other.set(xlabel="of ten people, how many agree", ylabel="faces of which the model is unsure", ylim=(0, None))
    for axes in (left, other):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def measure(
    logits: Array,
    truth: NDArray[np.int64],
    twins: NDArray[np.bool_],
    votes: NDArray[np.int64],
    labels: list[str],
    temperature: float,
) -> tuple[str, Any, Figure]:
    """Returns the figures as Markdown, the thresholds, and the picture."""
    shares, thresholds = calibrated(logits, truth, temperature)
    right = shares.argmax(1) == truth
    unsure = in_set(shares, thresholds).sum(1) != 1
    best, doubts, theirs = votes[:, :-2].max(1), entropy(shares, axis=1), entropy(votes, axis=1)
    table = agreement_rows(
        best, np.column_stack([unsure, in_set(shares, thresholds, 95).sum(1) != 1, right]).astype(float)
    )
    (sure,) = mean_intervals(np.where(unsure, np.nan, right)[:, None])
    options = {"n_resamples": 500, "paired": True, "method": "percentile", "random_state": np.random.default_rng(0)}
    ranks = bootstrap((doubts, theirs), lambda a, b: spearmanr(a, b).statistic, **options).confidence_interval
    text = f"""Sets are fitted on a random half of the {len(truth):,} images, with the temperature, and looked at in \
the other half; means of {SPLITS} such splits. By class, the promise is kept for faces of every expression, and sets \
are larger.

{coverage_tables(logits, truth, twins, labels)}
The accuracy of the surest faces; {unsure.mean():.1%} are unsure (not exactly one expression in the set for 90 %), the \
others are {interval_text(sure, ".1%")} right. A mistake has a lower confidence than a \
right answer in {roc_auc_score(right, shares.max(1)):.1%} of the pairs.

{surest_table(shares, right)}
The model doubts where people do: the rank correlation (Spearman) of its entropy and that of the ten votes is \
{spearmanr(doubts, theirs).statistic:.2f} ({ranks[0]:.2f} to {ranks[1]:.2f}). By how many of ten people agree on one \
of the expressions:

{markdown([["agree", "images", "unsure, 90 %", "unsure, 95 %", "accuracy"], *table])}"""
    return text, thresholds, picture(shares, right, best, unsure)


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path, help="FERPlus, as `fer-vit prepare` wrote it")
    parser.add_argument("ferplus", type=Path, help="FERPlus, a folder or zip: the votes of ten people")
    parser.add_argument("model", help="a folder or a name out of `fer-vit models`")
    parser.add_argument("--write", action="store_true", help="put figures and thresholds into the model's folder")
    args = parser.parse_args()
    folder, model = find_folder(args.model), load(args.model, "cpu")
    rows = Manifest.read(args.manifest, ["val"]).split("val")
    votes = read_votes(args.ferplus, [rows.name(row) for row in range(len(rows))])
    logits, shares = evaluate_logits(model, args.manifest)
    text, thresholds, figure = measure(
        logits.numpy(), shares.argmax(-1).numpy(), rows.twins("val"), votes, model.labels, model.net.temperature
    )
    print(text)
    if args.write:
        settings = json.loads((folder / CONFIG).read_text("utf-8"))
        (folder / CONFIG).write_text(json.dumps({**settings, "thresholds": thresholds}, indent=2) + "\n", "utf-8")
        card = ModelCard.load(folder / CARD_FILE)
        card.text = replaced(card.text, "unsure", text)
        card.save(folder / CARD_FILE)
        if folder.name == DEFAULT:
            figure.savefig(ROOT / "docs" / "unsure.png")


if __name__ == "__main__":
    main()
