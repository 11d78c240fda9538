"""The verb `models`: which models are here."""

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import ModelCard, scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from fer_vit.model.pretrained import CONFIG, DEFAULT, WEIGHTS, shipped_models


def models() -> None:
    """Lists the models that fer-vit ships and those that were downloaded from the Hugging Face hub.

    Any of them can be the `--checkpoint` of predict, visualize and export, and the argument of `fer_vit.load`.

    Examples:
        fer-vit models
    """
    rows = [("name", "where", "size", "trained on", "figures")]
    for name, where, folder in found_models():
        size = f"{(folder / WEIGHTS).stat().st_size / 1e6:.1f} MB"
        rows.append((name + " *" * (name == DEFAULT), where, size, *card_figures(folder)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"\n* is taken when `--checkpoint` is left out. Model cards: {shipped_models()[DEFAULT].parent}")


def found_models() -> Iterator[tuple[str, str, Path]]:
    """Yields name, place and folder of the models in the package and in the cache of the hub."""
    for name, folder in shipped_models().items():
        yield name, "shipped", folder
    try:
        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except CacheNotFound:
        return
    for repo in repos:
        for revision in sorted(repo.revisions, key=lambda one: one.last_modified)[-1:]:
            files = {file.file_name for file in revision.files}
            if {CONFIG, WEIGHTS} <= files and "fer-vit" in library(revision.snapshot_path):
                yield repo.repo_id, "cached", revision.snapshot_path


def library(folder: Path) -> str:
    """The library that a model card names; empty without a card."""
    card = folder / "README.md"
    return str(ModelCard.load(card).data.library_name or "") if card.is_file() else ""


def card_figures(folder: Path) -> tuple[str, str]:
    """Returns the data that a model was trained on and its figures, as its card's metadata has them."""
    card = folder / "README.md"
    data = ModelCard.load(card).data if card.is_file() else None
    trained = data.datasets if data is not None and data.datasets else []
    results = (data.eval_results or []) if data is not None else []
    figures = [f"{result.dataset_name} {result.metric_name} {result.metric_value}" for result in results]
    return ", ".join([trained] if isinstance(trained, str) else trained) or "-", "; ".join(figures) or "-"
