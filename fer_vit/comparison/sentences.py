"""The results of a comparison in words, and the methods for a paper, from the templates `prose.j2`
and `methods.md.j2`.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from fer_vit.comparison.comparison_rows import (
    CONDITIONS,
    EPISODES,
    INTRACLASS,
    PERSONS,
    PHOTOS,
    Contrast,
    T,
    main_contrasts,
)
from fer_vit.comparison.episodes import (
    BEGUN_ELSEWHERE,
    LEAVING,
    SHARE_IN_SIGHT,
    TOO_LATE,
    WITHOUT_BEGINNING,
)
from fer_vit.comparison.measures import PROBABILITIES, SHARES, Kind
from fer_vit.comparison.study import Pair, Study
from fer_vit.errors import printable
from fer_vit.heads import POSE, WEAK_R
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.smoothing import RECORDED
from fer_vit.report.prose import MAX_NAMES, Prose
from fer_vit.report.results_page import fact_title
from fer_vit.stats.persons import ALL_EQUAL, MIN_PERSONS
from fer_vit.stats.results import Results
from fer_vit.tables.table_reader import READERS, table_suffix
from fer_vit.version import __version__
from fer_vit.wording import counted, escaped, join_names, list_names

POSE_FROM = "pose_from"  # the fact about the source of the pose
MAX_SENTENCES = 10  # most clear differences of a kind that have a sentence
PROSE = Prose("comparison")
METHODS = Prose("comparison", "methods.md.j2")
EPISODE_LINES = {  # how conditions or clips cut episodes
    LEAVING: "Episodes that last beyond the condition in which they begin",
    BEGUN_ELSEWHERE: "Left out, episodes that begin in frames that are not compared",
    WITHOUT_BEGINNING: "Left out, episodes within which a clip or the sight of a face begins",
    TOO_LATE: "Left out of durations, episodes that begin too late in a clip or sight",
}


# ------------------------------------------------------------------------------------- sentences


def describe_results(results: Results, study: Study) -> dict[str, list[str]]:
    """Returns the results in words, and the reasons of missing tests, by title of a kind."""
    sentences = {}
    for kind in study.measures:
        contrasts = main_contrasts(results, study, kind)
        lines = describe_differences(kind, contrasts) + describe_missing(results, study, kind)
        sentences[kind.title] = lines
    return sentences


def describe_differences(kind: Kind, contrasts: Sequence[Contrast]) -> list[str]:
    """Returns a sentence for each measure with a clear difference, and for each other pair."""
    tested = [contrast for contrast in contrasts if contrast.is_tested]
    negligible = [contrast for contrast in tested if contrast.is_negligible]
    others = [contrast for contrast in tested if not contrast.is_negligible]
    lines = describe_clear(kind, [contrast for contrast in others if contrast.is_clear])
    for pair, titles in titles_by_pair(negligible).items():
        compared = name_measures(kind, titles)
        lines.append(PROSE.text("negligible", kind=kind, pair=pair, compared=compared))
    unclear = [contrast for contrast in others if not contrast.is_clear]
    for pair, titles in titles_by_pair(unclear).items():
        num_measures = len({contrast.measure for contrast in contrasts})
        if len(titles) == num_measures and num_measures > MAX_NAMES:
            compared = f"any of the {len(titles):,} measures"
        else:
            compared = name_measures(kind, titles)
        lines.append(PROSE.text("unclear", pair=pair, compared=compared))
    return lines


def describe_clear(kind: Kind, contrasts: Sequence[Contrast]) -> list[str]:
    """Returns a sentence for each measure with a clear difference, the largest effect first.

    After `MAX_SENTENCES`, a line has the number of further measures.
    """
    by_title: dict[str, list[Contrast]] = {}
    for contrast in contrasts:
        by_title.setdefault(contrast.measure.title, []).append(contrast)

    def effect(title: str) -> float:
        return max(abs(contrast.g) for contrast in by_title[title])

    largest_first = sorted(by_title, key=effect, reverse=True)
    lines = []
    for title in largest_first[:MAX_SENTENCES]:
        lines.append(PROSE.text("clear", kind=kind, title=title, contrasts=by_title[title]))
    if len(largest_first) > MAX_SENTENCES:
        lines.append(PROSE.text("more", number=len(largest_first) - MAX_SENTENCES))
    return lines


def titles_by_pair(contrasts: Sequence[Contrast]) -> dict[Pair, list[str]]:
    """Returns the titles of measures by pair of conditions."""
    titles: dict[Pair, list[str]] = {}
    for contrast in contrasts:
        titles.setdefault(contrast.pair, []).append(contrast.measure.title)
    return titles


def name_measures(kind: Kind, titles: Sequence[str]) -> str:
    """Returns some measures of a kind in words.

    Many movements are grouped by their first word, an area of the face: "brow (inner up, down
    left), mouth (smile left)".
    """
    if len(titles) <= MAX_NAMES or not kind.by_area:
        return f"{kind.subject} {list_names(titles, MAX_NAMES)}"
    areas: dict[str, list[str]] = {}
    for title in titles:
        area, _, title_in_area = title.partition(" ")
        areas.setdefault(area, []).append(title_in_area or area)
    texts = []
    for area, in_area in areas.items():
        texts.append(f"{escaped(area)} ({list_names(in_area, len(in_area))})")
    return f"{kind.subject} {', '.join(texts)}"


def describe_missing(results: Results, study: Study, kind: Kind) -> list[str]:
    """Returns a line about missing tests for each pair of conditions and each reason."""
    # all tables but Parquet round probabilities
    suffix = table_suffix(Path(study.facts.get("data", "")))
    is_rounded = kind.prefix == PROBABILITIES.prefix and suffix in {*READERS} - {".parquet"}
    titles: dict[tuple[Pair, str], list[str]] = {}
    for contrast in main_contrasts(results, study, kind):
        if not contrast.is_tested:
            key = (contrast.pair, contrast.difference.note)
            titles.setdefault(key, []).append(contrast.measure.title)

    lines = []
    for (pair, reason), of_reason in titles.items():
        listed = list_names(of_reason, MAX_NAMES)
        rounded = is_rounded and reason == ALL_EQUAL
        lines.append(
            PROSE.text(
                "missing", kind=kind, titles=listed, pair=pair, reason=reason, rounded=rounded
            )
        )
    return lines


# --------------------------------------------------------------------------------------- methods


def describe_methods(results: Results, study: Study, grid: float | None) -> list[str]:
    """Returns the methods for a paper, and a line for each kind of faces left out of all tests.

    `grid` is the length of the bins of series, in seconds; None: there are no series.
    """
    timed = [f"{label} {room:.2f} s" for label, room in study.rooms.items() if isfinite(room)]
    heads = []
    others = []
    for kind in study.measures:
        if kind.head:
            heads.append(kind.title[0].lower() + kind.title[1:])
        elif kind.prefix not in (PROBABILITIES.prefix, SHARES.prefix):
            others.append(kind.title[0].lower() + kind.title[1:])
    methods = METHODS.text(
        "methods",
        study=study,
        settings=", ".join(
            f"{fact_title(name)}: {fact}"
            for name, fact in study.facts.items()
            if name not in ("data", POSE_FROM)
        ),
        version=__version__,
        noun=study.noun,
        files=study.count_files(len({*study.observations.paths})),
        conditions=_count_conditions(results, study),
        intervals=any(row.estimate.low is not None for row in results.rows),
        within=_tested_pairs(results, study, paired=True),
        between=_tested_pairs(results, study, paired=False),
        heads=list_names(heads, MAX_NAMES),
        pose_from=_pose_source(study),
        others=list_names(others, MAX_NAMES),
        smoothing=_smoothing(study.facts),
        timed=list_names(timed, MAX_NAMES),
        share_in_sight=SHARE_IN_SIGHT,
        planned=list_names(study.planned, MAX_NAMES),
        datasets=join_names(study.model.datasets, "and") if study.model.datasets else "",
        num_aside=sum(map(study.count_aside, study.measures.values())),
        weak_r=WEAK_R,
        grid=grid,
    )
    return [methods, *_describe_left_out(results, study), *map(printable, study.notes)]


def _count_conditions(results: Results, study: Study) -> str:
    """Returns the conditions with their numbers of persons, and of photos or clips."""
    texts = []
    for condition in study.observations.conditions:
        numbers = results.by_measure["", CONDITIONS, condition]
        persons = counted(numbers[PERSONS].estimate.n, "person")
        photos = study.count_files(numbers[PHOTOS].estimate.n)
        texts.append(f"{condition} ({persons}, {photos})")
    return join_names(texts, "and")


def _tested_pairs(results: Results, study: Study, paired: bool) -> str:
    """Returns the pairs of conditions with tests of a design, and their numbers of persons."""
    tested = {row.group for row in results.rows if row.measure == T}
    texts = []
    for pair, design in study.designs.items():
        if design.paired == paired and pair.name in tested:
            persons = counted(int(design.persons.sum()), "person")
            texts.append(f"{pair.second} with {pair.first} ({persons})")
    return list_names(texts, MAX_NAMES)


def _pose_source(study: Study) -> str:
    """Returns whether the pose is from the model's head or landmarks; empty if not measured."""
    if not any(kind.head == POSE for kind in study.measures):
        return ""
    if any(output.head == POSE for output in study.model.outputs):
        return "head"  # of a shipped model
    source = study.facts.get(POSE_FROM, "unknown")  # tables without settings name it in each row
    return source if source in ("head", "landmarks") else "unknown"


def _smoothing(facts: Mapping[str, str]) -> str:
    """Returns how probabilities of clips were smoothed; empty if the table does not record it."""
    if "version" not in facts:
        return ""
    return RECORDED.describe(facts.get("smooth", f"{PhotoOptions.smooth:g}"))


def _describe_left_out(results: Results, study: Study) -> list[str]:
    """Returns a line for each kind of persons, faces and episodes that are left out."""
    few = []
    without_intraclass = []
    for condition in study.observations.conditions:
        persons = results.by_measure["", CONDITIONS, condition][PERSONS].estimate.n
        if persons < MIN_PERSONS:
            few.append(f"{condition} ({persons})")
        correlations = results.select(set=INTRACLASS, group=condition)
        if correlations and all(row.estimate.mean is None for row in correlations):
            without_intraclass.append(condition)

    episodes = {}  # texts by the beginning of a line
    for name, line in EPISODE_LINES.items():
        rows = results.select(set=EPISODES, measure=name)
        if any(row.estimate.n for row in rows):
            texts = [f"{row.estimate.n:,} of {row.group}" for row in rows]
            episodes[line] = ", ".join(texts)
    return METHODS.lines(
        "left_out",
        study=study,
        designs={pair: design for pair, design in study.designs.items() if design.excluded.any()},
        few=", ".join(few),
        min_persons=MIN_PERSONS,
        episodes=episodes,
        lasting=[label for label, room in study.rooms.items() if not isfinite(room)],
        share_in_sight=SHARE_IN_SIGHT,
        without_intraclass=without_intraclass,
    )
