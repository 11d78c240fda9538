"""Writes figures of a comparison for papers: differences, and means by condition."""

from pathlib import Path
from typing import TYPE_CHECKING

from fer_vit.comparison.measures import Measures
from fer_vit.comparison.page import choose_charted, row_name
from fer_vit.comparison.rows import MEAN, MEANS
from fer_vit.report.interval_figures import differences_figure, means_figure
from fer_vit.report.rendering import save_figure
from fer_vit.stats.estimate import Estimate

if TYPE_CHECKING:
    from fer_vit.comparison.results import Comparison


def save_figures(comparison: "Comparison", suffix: str, folder: Path) -> None:
    """Writes two figures of each kind of measures in the format of a suffix, such as `.pdf`."""
    for measures in comparison.study.measures:
        name = measures.kind.title.lower().replace(" ", "_")
        save_differences(comparison, measures, folder / f"{name}-differences{suffix}")
        save_means(comparison, measures, folder / f"{name}-means{suffix}")


def save_differences(comparison: "Comparison", measures: Measures, path: Path) -> None:
    """Writes the differences that the page charts at once; without a test, there is no figure."""
    kind = measures.kind
    charted = choose_charted(comparison.drawn_contrasts(measures))
    if not charted:
        return
    pair = comparison.study.only_pair
    differences = {}
    clear = []
    for contrast in charted:
        name = row_name(contrast, pair)
        differences[name] = contrast.difference.estimate
        if contrast.is_clear:
            clear.append(name)
    title = f"difference in {kind.phrase}"
    if pair is not None:
        title = f"{pair.name}: {kind.phrase}"
    scale = 1
    if kind.is_share:
        title += ", percentage points"
        scale = 100
    save_figure(differences_figure(differences, clear, title, scale), path, path.suffix)


def save_means(comparison: "Comparison", measures: Measures, path: Path) -> None:
    """Writes the means of all measures, or of those whose differences the page charts at once."""
    kind = measures.kind
    titles = measures.titles
    drawn = comparison.drawn_contrasts(measures)
    charted = choose_charted(drawn)
    if len(charted) == len(drawn):
        charted = comparison.main_contrasts(measures)
    shown = {contrast.measure for contrast in charted}
    means: dict[str, dict[str, Estimate]] = {}
    for name, column in measures.columns.items():
        if titles[name] not in shown:
            continue
        means[titles[name]] = {}
        for condition in comparison.study.observations.conditions:
            rows = comparison.by_measure[MEANS, column, condition]
            means[titles[name]][condition] = rows[MEAN].estimate
    if not means:  # all measures are weak
        return
    title = f"{kind.phrase}, %" if kind.is_share else kind.phrase
    scale = 100 if kind.is_share else 1
    save_figure(means_figure(means, title, scale), path, path.suffix)
