"""Writes figures of a comparison for papers: differences, and means by condition."""

from pathlib import Path

from fer_vit.comparison.comparison_page import choose_charted, difference_rows, mean_rows
from fer_vit.comparison.comparison_rows import drawn_contrasts, main_contrasts
from fer_vit.comparison.measures import Kind
from fer_vit.comparison.study import Study
from fer_vit.report.draw import FigureKind
from fer_vit.report.interval_figures import differences_figure, means_figure
from fer_vit.report.rendering import save_figure
from fer_vit.stats.results import Results


def save_figures(results: Results, study: Study, suffix: FigureKind, folder: Path) -> None:
    """Writes two figures of each kind of measures."""
    for kind in study.measures:
        name = kind.title.lower().replace(" ", "_")
        save_differences(results, study, kind, folder / f"{name}-differences.{suffix}")
        save_means(results, study, kind, folder / f"{name}-means.{suffix}")


def save_differences(results: Results, study: Study, kind: Kind, path: Path) -> None:
    """Writes the differences that the page charts at once; without a test, there is no figure."""
    charted = choose_charted(drawn_contrasts(results, study, kind))
    if not charted:
        return
    pair = study.only_pair
    title = f"difference in {kind.phrase}"
    if pair is not None:
        title = f"{pair.name}: {kind.phrase}"
    scale = 1
    if kind.is_share:
        title += ", percentage points"
        scale = 100
    save_figure(differences_figure(difference_rows(charted, pair), title, scale), path)


def save_means(results: Results, study: Study, kind: Kind, path: Path) -> None:
    """Writes the means of all measures, or of those whose differences the page charts at once."""
    drawn = drawn_contrasts(results, study, kind)
    charted = choose_charted(drawn)
    if len(charted) == len(drawn):
        charted = main_contrasts(results, study, kind)
    shown = {contrast.measure for contrast in charted}
    measures = [measure for measure in study.measures[kind] if measure in shown]
    if not measures:  # all measures are weak
        return
    title = f"{kind.phrase}, %" if kind.is_share else kind.phrase
    scale = 100 if kind.is_share else 1
    save_figure(means_figure(mean_rows(results, study, measures), title, scale), path)
