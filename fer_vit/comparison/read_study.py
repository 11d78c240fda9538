"""Reads a study: a table of predictions, whose faces are averaged by photo or clip.

N rows of the table, M measured faces, O photos or clips.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import yaml

from fer_vit.comparison.episodes import follow_faces
from fer_vit.comparison.measures import (
    Kind,
    Measure,
    change_from_rest,
    make_measures,
    values_by_kind,
)
from fer_vit.comparison.study import MeasuredFaces, Observations, Pair, Study, TableModel
from fer_vit.errors import FerVitError, known_names, short, suggest
from fer_vit.faces import READ_STATUSES
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import POSE, HeadOutputs
from fer_vit.model_settings import read_model_settings
from fer_vit.options import Options, Positive
from fer_vit.report.draw import FigureKind
from fer_vit.stats.means import average
from fer_vit.stats.series import Rest, RestInClips, parse_rest
from fer_vit.store.hub import CARD_FILE, read_config, shipped_models
from fer_vit.tables.cells import is_missing
from fer_vit.tables.groups import describe_groups
from fer_vit.tables.join import with_columns
from fer_vit.tables.labelled import Labelled
from fer_vit.tables.predicted import check_predicted, leave_out_uncertain, read_predictions

MAX_CONDITIONS = 20  # 20 conditions have 190 pairs; the 1,225 pairs of 50 would take minutes
MAX_BESIDE_BASELINE = 50  # most conditions when each is only compared with a baseline


@dataclass(frozen=True)
class CompareOptions(Options):
    """Options of `compare`: the table, and what is compared.

    Raises:
        FerVitError: The columns of conditions and persons are the same, or `rest` has another form.
    """

    data: Path
    """A table or folder of tables of `fer-vit predict`; Parquet also records the settings."""
    _: KW_ONLY
    by: str
    """The column with the condition or group."""
    person: str = "person"
    """The column with the person. `path`: each photo or clip is one person."""
    columns: Path | None = None
    """A table with the column path and others, such as condition and person."""
    baseline: str | None = None
    """The condition to compare the others with. Default: all pairs."""
    outcomes: Sequence[str] = ()
    """The outcomes that you planned, such as smile,p_happiness,valence: only these are compared,
    and p is corrected for all of them together. Default: all, corrected by kind of measure."""
    rest: str | None = None
    """A resting interval in each clip, such as 0-5 or 0:30-1:00, whose mean is subtracted."""
    grid: Positive | None = None
    """Also write grid.csv and grid_means.csv, means over time in bins of this many seconds."""
    uncertain: bool = False
    """Also use uncertain faces in photos that have a certain face."""
    figures: FigureKind | None = None
    """Also write 85 mm wide figures of differences and means to OUTPUT/figures."""
    output: Path = Path("comparison")
    """The folder to write."""
    overwrite: bool = False
    """Replace existing results."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by == self.person:
            raise FerVitError(
                f"Expected different columns in `--by` and `--person`, but both are {self.by}. "
                "Name the column of the persons."
            )
        if self.rest is not None:
            parse_rest(self.rest)  # raises the error for another form

    @property
    def interval(self) -> Rest | None:
        """The interval of rest in each clip; None: nothing is subtracted."""
        return None if self.rest is None else parse_rest(self.rest)

    @property
    def planned(self) -> tuple[str, ...]:
        """The names of the planned outcomes, one by one."""
        names = [name.strip() for text in self.outcomes for name in text.split(",")]
        planned = tuple(filter(None, names))
        if self.outcomes and not planned:
            raise FerVitError(
                "Expected names of measures in `--outcomes`, but got none. Remove it to compare "
                "all measures."
            )
        return planned


def read_study(options: CompareOptions) -> Study:
    """Reads a table of predictions, or a folder of tables, and the columns of another table.

    Raises:
        FerVitError: A table cannot be read or lacks a column, there are fewer than two conditions,
            no baseline, or no face in the interval of rest.
    """
    data = options.data
    faces = read_predictions(data, videos=True)
    check_predicted(data, faces)
    if not options.uncertain:
        faces = leave_out_uncertain(faces)
    groups = (options.by, options.person)
    faces = with_columns(faces, data, options.columns, groups)
    notes = (*faces.notes, *describe_groups(faces, groups))
    return make_study(
        replace(faces, notes=notes, facts={"data": str(data), **faces.facts}),
        by=options.by,
        person=options.person,
        baseline=options.baseline,
        rest=options.interval,
        outcomes=options.planned,
    )


def make_study(
    faces: Labelled,
    by: str,
    person: str,
    baseline: str | None,
    rest: Rest | None,
    outcomes: Sequence[str],
) -> Study:
    """Returns a study: the faces (N), averaged by photo or clip.

    Means and their changes from rest use the values before smoothing, since smoothing would mix
    rest with the frames beside it. Only the faces of `Study`, for series, have smoothed
    probabilities if the table has them.

    With an interval of rest, the mean over this interval of the same clip and person is subtracted
    from probabilities and outputs. A face is then measured if it is outside of the interval and its
    clip has a face within. Faces within are used for nothing else; they need no condition.

    Args:
        faces: The faces.
        by: The column with the condition.
        person: The column with the person.
        baseline: The condition to compare the others with; None: all pairs are compared.
        rest: The interval of rest; None: nothing is subtracted.
        outcomes: The names of the planned outcomes; empty: none is planned.
    """
    named = ~is_missing(faces.columns[person]) & ~is_missing(faces.columns[by])  # (N,)
    assigned = faces.predicted & named
    seconds = faces.numbers("seconds")  # (N,), NaN for a photo
    probabilities = _smoothed_probabilities(faces)  # (N, C)
    in_rest = np.zeros(len(named), bool)
    resting = None
    if rest is not None:
        in_rest = rest.contains(seconds)
        resting = RestInClips(rest, in_rest, _clips(faces, person))
        probabilities = resting.change(probabilities)
    has_rest = np.isfinite(probabilities).all(1)  # (N,); without an interval, if it is predicted
    used = assigned & has_rest & ~in_rest
    if rest is not None and not used.any():
        raise FerVitError(
            f"Expected clips with faces within and outside of `--rest {rest}`, but no clip of "
            f"{len({*faces.paths})} has them. Does it count from the start of each clip?"
        )

    observations, of_face = _observe(faces, used, by, person, baseline)
    pairs = _pair_conditions(observations.conditions, by, baseline)
    values = _average_faces(faces, used, resting, of_face, len(observations.paths))
    followed = None
    if SMOOTHED_LABEL in faces.columns:
        of_row = np.full(len(used), -1)  # (N,), the index of the observation
        of_row[used] = of_face
        followed = follow_faces(faces, person, of_row, observations)
        values |= followed.measures
    model = find_model(faces)
    measures = {}
    for kind, of_kind in values.items():
        measures[kind] = make_measures(kind, of_kind, model.outputs.weak_columns)
    planned = find_planned(measures, outcomes)
    return Study(
        observations=observations,
        labels=faces.labels,
        pairs=pairs,
        measures=choose_measures(measures, planned),
        faces=MeasuredFaces(of_face, seconds[used], probabilities[used]),
        planned=planned,
        model=model,
        rest=rest,
        without_rest=tuple(sorted({*map(str, faces.paths[assigned & ~has_rest])})),
        unassigned_faces=int((faces.predicted & ~assigned).sum()),
        without_face=_count_without_face(faces, named & ~in_rest, by),
        episodes=followed.counts if followed else {},
        rooms=followed.rooms if followed else {},
        facts=faces.facts,
        notes=(*faces.notes, *_note_several(faces, used, person)),
    )


def find_model(faces: Labelled) -> TableModel:
    """Returns what is known about the model of a table.

    Nothing is known if the rows name no model or several, or a model that is not shipped: a table
    may be from elsewhere, and opens no path. The pose counts if all angles are from the model's
    head.
    """
    names = {*faces.columns.get("model", ())} - {None}
    if len(names) != 1:
        return TableModel()
    (name,) = map(str, names)
    folder = shipped_models().get(name)
    if folder is None:
        return TableModel()
    outputs = read_model_settings(read_config(folder, name), name).outputs
    if {*faces.columns.get("pose_from", ())} - {None} != {"head"}:
        outputs = HeadOutputs(tuple(output for output in outputs if output.head != POSE))
    _, metadata, _ = (folder / CARD_FILE).read_text(encoding="utf-8").split("---\n", 2)
    return TableModel(outputs, tuple(yaml.safe_load(metadata)["datasets"]))


def _average_faces(
    faces: Labelled,
    used: Mask,
    resting: RestInClips | None,
    of_face: IntArray,
    num_observations: int,
) -> dict[Kind, dict[str, Array]]:
    """Returns the means of the faces of each observation (O,) by kind and name.

    An output without any value is left out.

    Args:
        faces: The faces (N).
        used: Whether each face is measured (N,).
        resting: The interval of rest in each clip; None: nothing is subtracted.
        of_face: The index of each measured face's observation (M,).
        num_observations: The number of observations O.
    """
    averaged: dict[Kind, dict[str, Array]] = {}
    for kind, of_faces in values_by_kind(faces):
        subtract = resting if kind.from_rest else None
        means = {}
        for name, values in of_faces.items():  # (N,)
            if subtract:
                values = subtract.change(values, kind.period)
            values = values[used]  # (M,)
            if not kind.head or np.isfinite(values).any():
                means[name] = average(values, of_face, num_observations, kind.period)
        if means:
            averaged[change_from_rest(kind, subtract.rest) if subtract else kind] = means
    return averaged


def find_planned(
    measures: Mapping[Kind, Sequence[Measure]], names: Sequence[str]
) -> tuple[str, ...]:
    """Returns the outcomes with the planned names, each once.

    Raises FerVitError for an outcome that the table does not have.
    """
    known: dict[str, str] = {}  # outcomes by their own names, and by the columns of measures.csv
    for of_kind in measures.values():
        for measure in of_kind:
            known[measure.outcome] = measure.outcome
            known[measure.column] = measure.outcome
    for name in names:
        if name not in known:
            raise FerVitError(
                f"Expected `--outcomes` among the measures of the table, but got {short(name)}."
                f"{suggest(name, known)} It has {known_names(name, known)}."
            )
    return tuple(dict.fromkeys(known[name] for name in names))


def choose_measures(
    measures: Mapping[Kind, list[Measure]], planned: Sequence[str]
) -> dict[Kind, list[Measure]]:
    """Returns the measures of planned outcomes; all measures if none is planned."""
    chosen = {}
    for kind, of_kind in measures.items():
        if planned:
            of_kind = [measure for measure in of_kind if measure.outcome in planned]
        if of_kind:
            chosen[kind] = of_kind
    return chosen


# --------------------------------------------------------------------------- the faces that count


def _clips(faces: Labelled, person: str) -> IntArray:
    """Returns the index of each face's clip (N,): one clip for each person in each file.

    The index is -1 for a row without a face, or without a person in the column `person`.
    """
    names = faces.columns[person]
    named = faces.predicted & ~is_missing(names)  # (N,)
    indices: dict[tuple[str, str], int] = {}
    clips = np.full(len(named), -1)
    for row in np.flatnonzero(named):
        key = (str(names[row]), str(faces.paths[row]))
        clips[row] = indices.setdefault(key, len(indices))
    return clips


def _smoothed_probabilities(faces: Labelled) -> Array:
    """Returns the probabilities (N, C); smoothed values of clips replace the others."""
    probabilities = faces.probabilities.copy()
    for index, label in enumerate(faces.labels):
        cells = faces.columns.get(SMOOTHED + label)
        if cells is not None:
            smoothed = cells.astype(float)
            has_smoothed = np.isfinite(smoothed) & faces.predicted
            probabilities[has_smoothed, index] = smoothed[has_smoothed]
    return probabilities


def _count_without_face(faces: Labelled, compared: Mask, by: str) -> dict[str, int]:
    """Returns the number of photos and frames without a face, by condition.

    `compared` (N,) is whether a row has a person and a condition, and is not of the interval of
    rest. Files that cannot be read do not count.
    """
    searched = np.ones(len(compared), bool)
    if "status" in faces.columns:
        searched = np.isin(faces.columns["status"].astype(str), READ_STATUSES)
    empty = compared & ~faces.predicted & searched  # (N,)
    return dict(Counter(str(cell) for cell in faces.columns[by][empty]))


def _note_several(faces: Labelled, used: Mask, person: str) -> list[str]:
    """Returns a line if several faces of a photo or frame belong to one person.

    Some of these faces may be other people's. `used` (N,) is whether a face is measured.
    """
    persons = faces.columns[person]
    moments = faces.moments
    counts = Counter(zip(faces.paths[used], moments[used], persons[used], strict=True))
    several = [path for (path, _, _), count in counts.items() if count > 1]
    if not several:
        return []
    return [
        f"Several faces of one person in {len(several):,} photos or frames, for example in "
        f"{short(several[0])}, are averaged. If they are of other people, remove their rows."
    ]


# ---------------------------------------------------------------------------------- observations


def _observe(
    faces: Labelled, used: Mask, by: str, person: str, baseline: str | None
) -> tuple[Observations, IntArray]:
    """Groups the faces in a mask (N,) by person, condition, and photo or clip.

    Returns the observations, and the index of each face's observation (M,).
    """
    condition_names = faces.columns[by][used].astype(str)
    person_names = faces.columns[person][used].astype(str)
    conditions = _order_conditions(np.unique(condition_names).tolist(), by, baseline)
    order = {name: index for index, name in enumerate(conditions)}
    condition = np.array([order[name] for name in condition_names])  # (M,)
    persons, of_person = np.unique(person_names, return_inverse=True)
    paths, of_path = np.unique(faces.paths[used].astype(str), return_inverse=True)
    keys = np.column_stack([of_person, condition, of_path])  # (M, 3)
    observed, of_face, face_counts = np.unique(
        keys, axis=0, return_inverse=True, return_counts=True
    )
    observations = Observations(
        conditions=conditions,
        persons=persons.tolist(),
        condition=observed[:, 1],
        person=observed[:, 0],
        paths=paths[observed[:, 2]].tolist(),
        face_counts=face_counts,
    )
    return observations, of_face


def _order_conditions(names: list[str], by: str, baseline: str | None) -> list[str]:
    """Returns the sorted names of conditions with the baseline first; checks their number."""
    unknown_baseline = baseline is not None and baseline not in names
    if len(names) < 2 or unknown_baseline:
        expected = "two or more conditions"
        hint = ""
        if baseline is not None:
            expected = f"the baseline {baseline} and others"
            hint = suggest(baseline, names)
        actual = short(", ".join(names)) or "none"
        raise FerVitError(f"Expected {expected} in `{by}`, but got {actual}.{hint}")
    limit = MAX_CONDITIONS if baseline is None else MAX_BESIDE_BASELINE
    if len(names) > limit:
        remedy = "Name another column with `--by`"
        if baseline is None and len(names) <= MAX_BESIDE_BASELINE:
            remedy += ", or compare them with one alone by `--baseline`"
        raise FerVitError(
            f"Expected at most {limit} conditions in `{by}`, but got {len(names):,}. {remedy}."
        )
    if baseline is not None:
        names.remove(baseline)
        names.insert(0, baseline)
    return names


def _pair_conditions(names: Iterable[str], by: str, baseline: str | None) -> list[Pair]:
    """Returns the pairs of conditions to compare; raises FerVitError if two have the same name."""
    pairs = [Pair(*both) for both in combinations(names, 2)]
    if baseline is not None:
        pairs = [pair for pair in pairs if pair.first == baseline]
    (name, count), *_ = Counter(pair.name for pair in pairs).most_common()
    if count > 1:
        raise FerVitError(
            f"Expected names in `{by}` whose differences have different names, but {name} "
            'stands for several. Rename the conditions without " - ".'
        )
    return pairs
