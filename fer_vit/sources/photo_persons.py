"""Persons in the paths of photos: read with a regular expression, and noticed without one."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from unicodedata import normalize

from fer_vit.data.schema import Row, Split
from fer_vit.errors import FerVitError, printable, short
from fer_vit.labels import EXPRESSIONS, canonical
from fer_vit.sources.photo_folders import Folders, split_of
from fer_vit.sources.splits import PERSON_COLUMN
from fer_vit.texts import as_text
from fer_vit.wording import counted, list_names

RUN = re.compile(r"[^\W\d_]+|\d+")  # a run of letters, or of digits
MAX_RUNS = 3  # most runs at the beginning of a name that are tried as a person

# What the beginnings of names must have in common to look like persons.
MIN_PERSONS = 3
MIN_COVERED = 0.8  # the least fraction of the names with a beginning of the same form
MIN_SEVERAL = 0.5  # the least fraction of the persons with photos of several classes
MIN_FILES = 2  # the least median of a person's photos in a class


def match_persons(names: Sequence[str], pattern: str) -> tuple[dict[str, str], dict[str, Folders]]:
    """Finds the person of each photo by a regular expression.

    The pattern is searched in the path of a photo. Its first group is the person, or the whole
    match if there is no group. Spellings that differ only in case are one person.

    Args:
        names: The paths of the photos, with slashes.
        pattern: The regular expression.

    Returns:
        The person of each photo that matches, and the folders of each photo without the folders in
        which the person was found.

    Raises:
        FerVitError: The pattern is invalid, matches no photo, or matches a split or an expression.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise FerVitError(
            f"Expected `--person` to be a regular expression, but got `{printable(pattern)}` "
            f"({error}). Correct it."
        ) from error

    persons = {}
    folders = {}
    group = min(compiled.groups, 1)
    for name in names:
        start, end = 0, 0  # where the person was found
        match = compiled.search(name)
        if match and match[group]:
            start, end = match.span(group)
            persons[name] = as_text(match[group])
        folders[name] = _folders_outside(name, start, end)

    if not persons:
        raise FerVitError(
            f"Expected `--person` to match paths such as {printable(short(names[0]))}, but "
            f"`{printable(pattern)}` matches none. Correct it: the first group, or else the whole "
            "match, is the person."
        )
    persons = one_spelling(persons)
    for person in sorted(set(persons.values())):
        # Val and Dev are persons, too
        if split_of(person) == "train" or canonical(person) in EXPRESSIONS:
            raise FerVitError(
                f"Expected `--person` to match persons, but `{printable(pattern)}` matches "
                f"{printable(person)}. Correct it: `([^/]+)/` is the first folder, "
                "`/([^/]+)/` the second, `(S[0-9]+)[^/]*$` a part of the file's name such as S010."
            )
    return persons, folders


def one_spelling(persons: Mapping[str, str]) -> dict[str, str]:
    """Returns persons with one spelling where spellings differ in case, spaces or accents only."""
    spelled: dict[str, str] = {}  # the first spelling of each person
    unified = {}
    for name, person in persons.items():
        key = normalize("NFC", person.strip()).casefold()
        unified[name] = spelled.setdefault(key, person)
    return unified


def _folders_outside(name: str, start: int, end: int) -> Folders:
    """Returns the folders of a path that do not overlap the characters from `start` to `end`."""
    folders = []
    position = 0
    for folder in name.split("/")[:-1]:
        if position + len(folder) <= start or end <= position:
            folders.append(folder)
        position += len(folder) + 1
    return tuple(folders)


def person_notes(persons: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Returns notes about the persons of photos, and about photos without one."""
    found = sorted(set(persons.values()))
    notes = [f"Read {counted(len(found), 'person')} from the paths ({list_names(found)})."]
    without = [name for name in names if name not in persons]
    if without:
        notes.append(
            f"`--person` does not match {counted(len(without), 'photo')}, for example "
            f"{printable(short(without[0]))}: their persons are unknown."
        )
    return notes


def leak_warnings(rows: Sequence[Row]) -> list[str]:
    """Returns a warning about persons with photos in several splits.

    If no person is known, these are the persons that the names of photos look like.
    """
    persons = {row.name: row.extra[PERSON_COLUMN] for row in rows if row.extra}
    pattern = None
    if not persons:
        persons = suspect_persons({row.name: row.label for row in rows})
        pattern = name_pattern(persons)
    splits: dict[str, set[Split]] = defaultdict(set)
    for row in rows:
        if row.name in persons:
            splits[persons[row.name]].add(row.split)
    several = sorted(person for person, of_person in splits.items() if len(of_person) > 1)
    if not several:
        return []
    leak = f"{len(several):,} of them are in several splits ({list_names(several)})"
    if pattern is None:
        return [f"The photos show {len(splits):,} persons, and {leak}."]
    return [
        f"Names look like {len(splits):,} persons, and {leak}: `--person '{pattern}'` keeps each "
        "in one split."
    ]


def suspect_persons(labels: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the persons that names of photos look like, by the name of the photo.

    Names look like persons if most of them share a beginning with other photos of their class and
    of other classes, such as `S010` in `S010_004_00000017.png`.

    Args:
        labels: The label of each photo by its path; None without a label.

    Returns:
        {} if the names do not look like persons.
    """
    best: dict[str, str] = {}
    for count in range(1, MAX_RUNS + 1):
        beginnings = {}
        for name in labels:
            stem = name.rpartition("/")[2].rpartition(".")[0]
            runs = list(RUN.finditer(stem))
            if len(runs) > count:
                beginnings[name] = stem[: runs[count - 1].end()]
        persons = _most_frequent_form(beginnings)
        more = len(set(persons.values())) > len(set(best.values()))
        if more and _look_like_persons(persons, labels):
            best = persons
    return best


def _most_frequent_form(beginnings: Mapping[str, str]) -> dict[str, str]:
    """Returns the beginnings of one form, such as letters and digits, by name."""
    forms = {}
    for name, beginning in beginnings.items():
        forms[name] = re.sub(r"\d+", "0", re.sub(r"[^\W\d_]+", "A", beginning))
    (frequent, _), *_ = Counter(forms.values()).most_common(1) or [("", 0)]
    return {name: text for name, text in beginnings.items() if forms[name] == frequent}


def _look_like_persons(persons: Mapping[str, str], labels: Mapping[str, str | None]) -> bool:
    """Returns whether photos with one beginning are probably photos of one person."""
    if len(persons) < MIN_COVERED * len(labels):
        return False
    files = Counter((person, labels[name]) for name, person in persons.items())
    num_classes = Counter(person for person, _ in files)
    if len(num_classes) < MIN_PERSONS or median(files.values()) < MIN_FILES:
        return False
    several = sum(number > 1 for number in num_classes.values())
    return several >= MIN_SEVERAL * len(num_classes) or len(set(labels.values())) == 1


def name_pattern(persons: Mapping[str, str]) -> str | None:
    """Returns a regular expression that finds `suspect_persons` in the paths; None without any."""
    beginnings = sorted(set(persons.values()))
    if not beginnings:
        return None
    runs = [RUN.findall(beginning) for beginning in beginnings]
    separators = RUN.split(beginnings[0])
    pattern = re.escape(separators[0])
    for texts, separator in zip(zip(*runs, strict=True), separators[1:], strict=True):
        if texts[0].isdigit():
            pattern += r"\d+"
        elif len(set(texts)) == 1:
            pattern += texts[0]
        else:
            pattern += "[A-Za-z]+" if "".join(texts).isascii() else r"[^\W\d_]+"
        pattern += re.escape(separator)
    if all(re.findall(pattern, name)[0] == person for name, person in persons.items()):
        return pattern
    return f"({pattern})[^/]*$"  # a folder matches as well
