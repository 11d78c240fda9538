"""The command `models`: lists the available models."""

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData, scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from yaml import YAMLError

from fer_vit.report.table import align_columns
from fer_vit.store.hub import CARD_FILE, CONFIG, DEFAULT, WEIGHTS, shipped_models


def models() -> list[dict[str, str]]:
    """Lists the included models and the models downloaded from the Hugging Face hub.

    `--checkpoint` and `fer_vit.load` accept their names.

    Examples:
        fer-vit models

    Returns:
        Name, place, size, training data and results of each model.
    """
    found = []
    for name, where, folder in found_models():
        data, size = card_data(folder), f"{(folder / WEIGHTS).stat().st_size / 1e6:.1f} MB"
        trained = [data.datasets] if isinstance(data.datasets, str) else data.datasets or ["-"]
        scores = data.eval_results or []
        results = [
            f"{one.dataset_name} {one.metric_name} {percent(one.metric_value)}" for one in scores
        ]
        facts = {"trained on": ", ".join(map(str, trained)), "results": "; ".join(results) or "-"}
        found.append({"name": name, "where": where, "size": size, **facts})
    return found


def show(found: list[dict[str, str]]) -> None:
    """Prints the models."""
    rows = [
        [name + " *" * (name == DEFAULT), *others]
        for name, *others in (one.values() for one in found)
    ]
    print(align_columns([[*found[0]], *rows]))
    print(f"\n* is the default of `--checkpoint`. Model cards: {shipped_models()[DEFAULT].parent}")


def found_models() -> Iterator[tuple[str, str, Path]]:
    """Yields the name, origin and folder of each model in the package and in the cache of the hub."""
    for name, folder in shipped_models().items():
        yield name, "shipped", folder
    try:
        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except CacheNotFound:
        return
    for repo in repos:
        for revision in sorted(repo.revisions, key=lambda one: one.last_modified)[-1:]:
            complete = {CONFIG, WEIGHTS} <= {file.file_name for file in revision.files}
            if complete and card_data(revision.snapshot_path).library_name == "fer-vit":
                yield repo.repo_id, "cached", revision.snapshot_path


def card_data(folder: Path) -> ModelCardData:
    """Returns the metadata of a folder's model card; empty without a readable card."""
    try:
        data: ModelCardData = ModelCard.load(folder / CARD_FILE, ignore_metadata_errors=True).data
    except (OSError, TypeError, ValueError, YAMLError):
        return ModelCardData()
    return data


def percent(value: object) -> str:
    """Formats a metric's value, which in a card from the hub may be anything."""
    return f"{100 * value:.4g}%" if isinstance(value, float) else str(value)
