"""Makes a study from predictions: averages the faces of each photo or clip."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from fer_vit.comparison.episodes import (
    EpisodeCounts,
    count_episodes,
    episode_kinds,
    find_episodes,
    find_least_room,
    follow_faces,
)
from fer_vit.comparison.kinds import (
    MeasureKind,
    average_kind,
    clip_seconds,
    head_kinds,
    label_shares,
    probability_change_kind,
    probability_kind,
    read_heads,
    share_kind,
)
from fer_vit.comparison.study import Study
from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluation.checks import find_moments
from fer_vit.evaluation.join import describe_groups
from fer_vit.evaluation.labelled import Labelled
from fer_vit.faces import READ_STATUSES
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.stats.series import Rest, RestInClips
from fer_vit.tables.cells import is_missing

MAX_CONDITIONS = 20  # 20 conditions have 190 pairs; the 1,225 pairs of 50 would take minutes
MAX_BESIDE_BASELINE = 50  # most conditions when each is only compared with a baseline


def make_study(
    faces: Labelled,
    by: str,
    person: str,
    baseline: str | None = None,
    rest: Rest | None = None,
) -> Study:
    """Returns a study: the faces, averaged by photo or clip, with their persons and conditions.

    Means and their changes from rest use the values before smoothing, since smoothing would mix
    rest with the frames beside it. Only `Study.probabilities`, for series, are smoothed if the
    table has smoothed values.

    With `rest`, the mean over this interval of the same clip and person is subtracted from
    probabilities and outputs. Faces within the interval are used for nothing else.

    Args:
        faces: The predictions (N).
        by: The column with the conditions.
        person: The column with the persons.
        baseline: The condition to compare with all others; None: all pairs are compared.
        rest: The interval of rest in each clip; None: nothing is subtracted.

    Raises:
        FerVitError: There are fewer than two conditions, no baseline, or no face in the interval.
    """
    assigned = faces.predicted & _have_cells(faces, person, by)
    seconds = clip_seconds(faces)  # (N,)
    selected = _select_faces(faces, assigned, seconds, person, rest)
    measured = faces.take(selected.used)  # M faces
    observations = _observe(measured, by, person, baseline)
    conditions = {}
    for index, name in enumerate(observations.conditions):
        conditions[name] = observations.condition == index
    pairs = list(combinations(observations.conditions, 2))
    if baseline is not None:
        pairs = [(first, second) for first, second in pairs if first == baseline]
    kinds = _face_kinds(faces, measured, selected, observations)
    episodes: dict[str, EpisodeCounts] = {}
    rooms: dict[str, float] = {}
    if SMOOTHED_LABEL in faces.columns:
        of_row = np.full(len(selected.used), -1)  # (N,)
        of_row[selected.used] = observations.of_face
        seen = follow_faces(faces, person)
        of_sighting = of_row[seen.rows]
        found = find_episodes(seen, of_sighting)
        least_room = find_least_room(found, len(faces.labels))
        kinds += episode_kinds(
            seen, of_sighting, found, least_room, faces.labels, len(observations.paths)
        )
        for name, members in conditions.items():
            episodes[name] = count_episodes(found, least_room, members)
        for index in np.unique(found.label[found.counted]).tolist():
            rooms[faces.labels[index]] = float(least_room[index])
    return Study(
        conditions=conditions,
        pairs=pairs,
        person_names=observations.person_names,
        labels=faces.labels,
        person=observations.person,
        paths=observations.paths,
        face_counts=observations.face_counts,
        kinds=kinds,
        observation_of_face=observations.of_face,
        seconds=seconds[selected.used],
        probabilities=selected.probabilities[selected.used],
        rest=rest,
        without_rest=selected.without_rest,
        unassigned_faces=int((faces.predicted & ~assigned).sum()),
        without_face=count_without_face(faces, seconds, by, person, rest),
        episodes=episodes,
        rooms=rooms,
        notes=(
            *faces.notes,
            *describe_groups(faces, (by, person)),
            *note_several(measured, person),
        ),
    )


def note_several(measured: Labelled, person: str) -> list[str]:
    """Returns a line if several faces of a photo or frame belong to one person.

    Some of these faces may be other people's.
    """
    moments = find_moments(measured.columns)
    persons = measured.columns[person]
    counts = Counter(zip(measured.paths, moments, persons, strict=True))
    several = [path for (path, _, _), count in counts.items() if count > 1]
    if not several:
        return []
    return [
        f"Several faces of one person in {len(several):,} photos or frames, for example in "
        f"{short(several[0])}, are averaged. If they are of other people, remove their rows."
    ]


def count_without_face(
    faces: Labelled, seconds: Array, by: str, person: str, rest: Rest | None
) -> dict[str, int]:
    """Returns, by condition, the number of photos and frames of persons without a face.

    `by` and `person` are columns. `seconds` (N,) is the time of each row in its clip, NaN for a
    photo. Frames within the interval of `rest` do not count, nor do files that cannot be read.
    """
    assigned = _have_cells(faces, person, by)
    searched = np.ones(len(faces.predicted), bool)
    if "status" in faces.columns:
        searched = np.isin(faces.columns["status"].astype(str), READ_STATUSES)
    empty = assigned & ~faces.predicted & searched  # (N,)
    if rest:
        empty &= ~rest.contains(seconds)
    return dict(Counter(str(cell) for cell in faces.columns[by][empty]))


class Selected(NamedTuple):
    """The faces that a study measures, and their probabilities for series."""

    used: Mask  # (N,), whether each face is measured
    probabilities: Array  # (N, C), smoothed in clips, or changes from rest
    resting: RestInClips | None  # the rest of all N faces; None without a rest
    without_rest: tuple[str, ...]  # photos and clips without a face in the interval


def _select_faces(
    faces: Labelled, assigned: Mask, seconds: Array, person: str, rest: Rest | None
) -> Selected:
    """Selects the faces to measure among the `assigned` faces (N,).

    Assigned faces have a person and a condition. With `rest`, a face is measured if it is outside
    of the interval and its clip has a face within. Faces without a condition count as rest, too.
    Raises FerVitError if no face is selected.
    """
    probabilities = _smoothed_probabilities(faces)  # (N, C)
    if rest is None:
        return Selected(assigned, probabilities, resting=None, without_rest=())

    resting = RestInClips(rest, seconds, _clips(faces, person))
    changes = resting.change(probabilities)  # (N, C)
    has_rest = np.isfinite(changes).all(1)  # (N,)
    without_rest = sorted({str(path) for path in faces.paths[assigned & ~has_rest]})
    used = assigned & has_rest & ~rest.contains(seconds)
    if not used.any():
        raise FerVitError(
            f"Expected clips with faces within and outside of `--rest {rest}`, but no clip of "
            f"{len({*faces.paths})} has them. Does it count from the start of each clip?"
        )
    return Selected(used, changes, resting, tuple(without_rest))


class Observations(NamedTuple):
    """O observations: the faces of one person in one condition and one photo or clip."""

    conditions: list[str]  # names in order, the baseline first
    person_names: list[str]  # names (P,) in order
    condition: IntArray  # (O,), the index of the condition
    person: IntArray  # (O,), the index of the person
    paths: list[str]  # (O,), the photo or clip
    face_counts: IntArray  # (O,), the number of faces
    of_face: IntArray  # (M,), the index of each measured face's observation


def _observe(measured: Labelled, by: str, person: str, baseline: str | None) -> Observations:
    """Groups the faces to measure by person, condition, and photo or clip."""
    conditions = _condition_names(measured.columns[by], by, baseline)
    persons = measured.columns[person].astype(str)  # (M,)
    paths = measured.paths.astype(str)  # (M,)
    person_names, person_index = np.unique(persons, return_inverse=True)
    path_names, path_index = np.unique(paths, return_inverse=True)
    condition_index = np.array([conditions.index(str(cell)) for cell in measured.columns[by]])

    keys = np.column_stack([person_index, condition_index, path_index])  # (M, 3)
    observed, of_face, face_counts = np.unique(
        keys, axis=0, return_inverse=True, return_counts=True
    )
    return Observations(
        conditions=conditions,
        person_names=person_names.tolist(),
        condition=observed[:, 1],
        person=observed[:, 0],
        paths=path_names[observed[:, 2]].tolist(),
        face_counts=face_counts,
        of_face=of_face,
    )


def _face_kinds(
    faces: Labelled,
    measured: Labelled,
    selected: Selected,
    observations: Observations,
) -> list[MeasureKind]:
    """Returns the measures of faces, averaged by observation.

    `measured` are the M faces that `selected` has chosen from the N `faces`.
    """
    used = selected.used
    resting = selected.resting
    if resting:
        changes = resting.change(faces.probabilities)  # (N, C)
        probabilities = probability_change_kind(faces.labels, changes[used], resting.rest)
    else:
        probabilities = probability_kind(faces.labels, measured.probabilities)
    face_kinds = [probabilities, share_kind(label_shares(measured))]
    face_kinds += head_kinds(read_heads(faces, resting), used, resting.rest if resting else None)

    num_observations = len(observations.paths)
    return [average_kind(kind, observations.of_face, num_observations) for kind in face_kinds]


def _condition_names(cells: Iterable[object], by: str, baseline: str | None) -> list[str]:
    """Returns the conditions in a column in order, the baseline first."""
    names = sorted({str(cell) for cell in cells})
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


def _have_cells(faces: Labelled, person: str, by: str) -> Mask:
    """Returns whether each face (N,) has a person and a condition."""
    return ~is_missing(faces.columns[person]) & ~is_missing(faces.columns[by])


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
