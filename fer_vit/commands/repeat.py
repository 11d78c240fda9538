"""The command `repeat`: trains configs with several seeds and writes their scores in one table."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, TableError
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.files import atomic_write, check_output
from fer_vit.listing import check_resumable
from fer_vit.options import Interval, Options, takes
from fer_vit.report.table import TableWriter, align_columns, markdown, share_formats
from fer_vit.stats.estimate import NO_RESULT
from fer_vit.stats.scores import score_once
from fer_vit.texts import check_permission, json_text
from fer_vit.train.recipe import Recipe

LOGGER = logging.getLogger("fer_vit")

# The columns of the table, by their names in `evaluate`.
SCORES = ("accuracy", "UAR", "macro F1", "cross-entropy", "calibration error")

# The columns whose values are equal in all runs of one row of the table.
GROUP_COLUMNS = ("folder", "config", "data", "split")


@dataclass(frozen=True)
class RepeatOptions(Options):
    """Options of `repeat`."""

    manifest: Path
    """A manifest of `fer-vit prepare` with labels and a val split."""
    _: KW_ONLY
    config: Sequence[str] = ("finetune",)
    """Config files, or names from `fer-vit configs`."""
    seeds: Annotated[int, Interval(ge=1, le=1000)] = 3
    """The number of seeds: 0, 1, ..."""
    split: Split = "val"
    """The split to score."""
    output: Path = Path("repetitions")
    """The folder to write."""
    fit_options: Sequence[str] = ()
    """Options of `fit`, as words of the command line."""


@takes(RepeatOptions)
def repeat(options: RepeatOptions) -> list[dict[str, Any]]:
    """Trains each config with several seeds, and tabulates the scores.

    Writes OUTPUT/results.md, the mean and standard deviation of each config, and OUTPUT/runs.csv, a
    row for each run. To resume, or to add configs and seeds, repeat the command. Options of `fit`
    (`--trainer.max_epochs 5`, `--model my_module.MyTask`) change every run. Scores on val are
    optimistic, because val chooses the best epoch.

    Examples:
        fer-vit repeat data/ferplus.parquet --config ferplus_teacher ablation --seeds 5

        fer-vit repeat mine/faces.parquet --model.lr 1e-4 --split test

    Returns:
        The rows of the table: `mean`, `sd` and `values` of each score.
    """
    manifest = options.manifest
    output = options.output
    split = options.split
    check_resumable(output, "*/seed*")
    check_output(output / "runs.csv", overwrite=True)
    check_output(output / "results.md", overwrite=True)
    words = tuple(options.fit_options)
    recipes = [Recipe(name, words, reserved=("seed_everything",)) for name in options.config]
    faces_manifest = Manifest.read(manifest)
    if not len(faces_manifest.split(split)):
        raise FerVitError(f"{manifest} has no rows in the split {split}. Choose another `--split`.")
    split_faces = faces_manifest.labelled(split)
    if not len(split_faces):
        raise FerVitError(f"No face in the split {split} of {manifest} has a label. Add labels.")

    for recipe in recipes:
        folder = f"{recipe.name}-{recipe.key(manifest)}"
        for seed in range(options.seeds):
            path = output / folder / f"seed{seed}" / f"{split}.json"
            if path.exists():
                continue
            LOGGER.info(f"{recipe.text}: seed {seed}, run {seed + 1} of {options.seeds}")
            settings: dict[str, object] = {"data.manifest": str(manifest), "seed_everything": seed}
            best = recipe.fit(output, f"{folder}/seed{seed}", settings)
            faces = predict_manifest(recipe.load(best), split_faces, split)
            assert faces.targets is not None
            values = score_once(faces.probabilities, faces.targets, faces.labels)
            run: dict[str, Any] = {
                "folder": folder,
                "config": recipe.text,
                "data": str(manifest),
                "split": split,
                "seed": seed,
                "checkpoint": best,
            }
            run |= {name: float(values[name]) for name in SCORES}
            with atomic_write(path) as file:
                file.write_text(json_text(run), "utf-8")

    runs = read_runs(output)
    results = summarize_runs(runs)
    write_runs(output, runs, results)
    LOGGER.info(f"{align_columns(table_rows(results))}\nWritten to {output}: results.md, runs.csv")
    return results


def read_runs(output: Path) -> list[dict[str, Any]]:
    """Returns the finished runs in the order of `GROUP_COLUMNS` and seeds."""
    runs = []
    for path in output.glob("*/seed*/*.json"):
        try:
            run = json.loads(path.read_text("utf-8"))
            checked: dict[str, Any] = {}
            for name in (*GROUP_COLUMNS, "checkpoint"):
                checked[name] = str(run[name])
            checked["seed"] = int(run["seed"])
            for name in SCORES:  # JSON has null for an infinite cross-entropy
                checked[name] = None if run[name] is None else float(run[name])
            runs.append(checked)
        except (ValueError, TypeError, LookupError, OSError) as error:
            check_permission(path, error)
            raise TableError(
                f"{path} is damaged ({type(error).__name__}). Remove it: its run is scored again."
            ) from error
    return sorted(runs, key=itemgetter(*GROUP_COLUMNS, "seed"))


def summarize_runs(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the mean, standard deviation (over n - 1) and values of each score, for each group.

    A score that is infinite in a run has no mean and no standard deviation.
    """
    key_of = itemgetter(*GROUP_COLUMNS)
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault(key_of(run), []).append(run)

    results = []
    for key, members in groups.items():
        result: dict[str, Any] = dict(zip(GROUP_COLUMNS, key, strict=True))
        result["seeds"] = [run["seed"] for run in members]
        for name in SCORES:
            values = [run[name] for run in members]
            result[name] = {"mean": None, "sd": None, "values": values}
            if None in values:
                continue
            result[name]["mean"] = mean(values)
            if len(values) > 1:
                result[name]["sd"] = stdev(values)
        results.append(result)
    return results


def table_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the rows of the table: a heading, then a row for each group."""
    rows = [[*GROUP_COLUMNS, "seeds", *SCORES, "accuracy by seed"]]
    for result in results:
        row = [result[name] for name in GROUP_COLUMNS]
        row.append(str(len(result["seeds"])))
        for name in SCORES:
            score = result[name]
            text = score_text(score["mean"])
            if score["sd"] is not None:
                text += f" ± {score['sd']:.3f}"
            row.append(text)
        row.append(" ".join(map(score_text, result["accuracy"]["values"])))
        rows.append(row)
    return rows


def score_text(value: float | None) -> str:
    """Formats a score for a table."""
    return NO_RESULT if value is None else f"{value:.3f}"


def write_runs(
    output: Path, runs: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> None:
    """Writes OUTPUT/runs.csv and OUTPUT/results.md."""
    columns: dict[str, type] = dict.fromkeys(GROUP_COLUMNS, str)
    columns["seed"] = int
    columns |= dict.fromkeys(SCORES, float)
    columns["checkpoint"] = str
    with TableWriter(output / "runs.csv", columns, formats=share_formats(columns)) as table:
        table.write(runs)
    with atomic_write(output / "results.md") as file:
        text = "Mean ± standard deviation over seeds.\n\n"
        file.write_text(text + markdown(table_rows(results)), "utf-8")
