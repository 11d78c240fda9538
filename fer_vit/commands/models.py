"""The command `models`: lists the available models."""

import json
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData, scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from yaml import YAMLError

from fer_vit.heads import EXPRESSION, HEADS, WEAK, Output
from fer_vit.report.table import align_columns
from fer_vit.store.hub import CARD_FILE, CONFIG_FILE, DEFAULT_MODEL, WEIGHTS_FILE, shipped_models
from fer_vit.texts import as_dict


def models() -> list[dict[str, str]]:
    """Lists the shipped models and the models downloaded from the Hugging Face hub.

    `--checkpoint` and `fer_vit.load` accept the names of these models.

    Examples:
        fer-vit models

    Returns:
        Name, place, size, heads, training data and results of each model.
    """
    rows = []
    for name, where, folder in find_models():
        card = card_data(folder)
        trained = card.datasets or ["-"]
        if isinstance(trained, str):
            trained = [trained]

        results = []
        for score in card.eval_results or []:
            value = metric_text(score.metric_value)
            results.append(f"{score.dataset_name} {score.metric_name} {value}")

        size = (folder / WEIGHTS_FILE).stat().st_size
        row = {
            "name": name,
            "where": where,
            "size": f"{size / 1e6:.1f} MB",
            "heads": head_names(folder / CONFIG_FILE),
            "trained on": ", ".join(map(str, trained)),
            "results": "; ".join(results) or "-",
        }
        rows.append(row)
    return rows


def show(rows: list[dict[str, str]]) -> None:
    """Prints the models."""
    table = [list(rows[0])]
    for row in rows:
        name = row["name"]
        if name == DEFAULT_MODEL:
            name += " *"
        table.append(list({**row, "name": name}.values()))
    print(align_columns(table))
    folder = shipped_models()[DEFAULT_MODEL].parent
    print(f"\n* is the default of `--checkpoint`. Model cards: {folder}")


def find_models() -> Iterator[tuple[str, str, Path]]:
    """Yields name, place and folder of each shipped model and each model in the hub's cache."""
    for name, folder in shipped_models().items():
        yield name, "shipped", folder
    try:
        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except CacheNotFound:
        return
    for repo in repos:
        if not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda revision: revision.last_modified)
        complete = {CONFIG_FILE, WEIGHTS_FILE} <= {file.file_name for file in newest.files}
        if complete and card_data(newest.snapshot_path).library_name == "fer-vit":
            yield repo.repo_id, "cached", newest.snapshot_path


def card_data(folder: Path) -> ModelCardData:
    """Returns the metadata of the model card in a folder; empty without a readable card."""
    try:
        data: ModelCardData = ModelCard.load(folder / CARD_FILE, ignore_metadata_errors=True).data
    except (OSError, TypeError, ValueError, YAMLError):
        return ModelCardData()
    return data


def head_names(config: Path) -> str:
    """Returns the heads in a model's config.json as text.

    A further head has the number of its outputs, and their r if it was measured. The config.json of
    a model from the hub may contain anything.
    """
    try:
        settings = as_dict(json.loads(config.read_text("utf-8")))
    except (OSError, ValueError):
        return "-"
    outputs = as_dict(settings.get("outputs"))
    agreement = as_dict(settings.get("r"))
    names = [EXPRESSION]
    for head in HEADS:
        if isinstance(outputs.get(head), list):
            words = [str(len(outputs[head]))]
            r_by_name = as_dict(agreement.get(head))
            measured = [r for r in r_by_name.values() if isinstance(r, float)]
            if measured:
                words.append(f"r {min(measured):.2f} to {max(measured):.2f}")
                num_weak = sum(Output(head, "", r).is_weak for r in measured)
                if num_weak:
                    words.append(f"{num_weak} {WEAK}")
            names.append(f"{head} ({', '.join(words)})")
    return ", ".join(names)


def metric_text(value: object) -> str:
    """Formats the value of a metric. A card from the hub may contain any value."""
    return f"{100 * value:.4g}%" if isinstance(value, float) else str(value)
