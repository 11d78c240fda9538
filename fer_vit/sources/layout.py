"""What the folders of a data set mean: splits, classes and persons.

Read are CLASS/..., SPLIT/CLASS/... and CLASS/SPLIT/...; a folder directly in a class folder, or in
its split folder, names a person. What could mean something else is an error, because a wrong guess
trains a wrong model.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from unicodedata import normalize

from fer_vit.data.schema import SPLITS, Split
from fer_vit.errors import FerVitError
from fer_vit.labels import EXPRESSIONS, canonical
from fer_vit.listing import counted, name_text

_WORDS = {
    "train": "train training trainings traing trn tr learn learning trainval trainvalid fit",
    "val": "val vals valid valids validation validate validating vld vd va "
    "dev devel development tune tuning",
    "test": "test tests testing tst te ts holdout heldout hold held unseen "
    "private final privatetest testprivate",
    "evaluation": "eval evals evaluation evaluate evaluating ev publictest testpublic",
}
"""Words for a split; an evaluation split is the test split, or val beside a test split."""
_FILL = """
    set sets split splits data dataset datasets db image images img imgs face faces
    photo photos picture pictures pics folder dir sample samples out
    crop crops cropped aligned new the my
"""
_USUAL = {"train", "training", "val", "valid", "validation", "test", "testing"}
_SHORT = 3
"""Up to this length a split's word may be a name or initials."""

_FILLER = "|".join(sorted(_FILL.split(), key=len, reverse=True))
_MEANING = {
    meaning: re.compile(rf"(?:{_FILLER})*(?:{'|'.join(words.split())})(?:{_FILLER})*")
    for meaning, words in _WORDS.items()
}
_SERIES = re.compile(
    r"(?:k?fold|split|cv|part|partition|subset|batch|chunk|shard|portion|slice)s?"
    r"[\W_]*(?:\d+|[a-z])",
    re.IGNORECASE,
)
_PERSON = re.compile(
    r"\d|person|subject|participant|proband|actor|actress|individual|people|patient|speaker",
    re.IGNORECASE,
)


def _letters(name: str) -> str:
    return re.sub(r"[\W\d_]+", "", normalize("NFKC", name)).casefold()


def _meaning(name: str) -> str | None:
    letters = _letters(name)
    return next((meaning for meaning, words in _MEANING.items() if words.fullmatch(letters)), None)


def split_names(names: Iterable[str]) -> dict[str, Split]:
    """Returns the split that each folder name means, in any case and spelling,
    without the names that mean none.
    """
    meanings = {name: meaning for name in names if (meaning := _meaning(name))}
    taken = set(meanings.values())
    evaluation: Split = "val" if "test" in taken and "val" not in taken else "test"
    splits: dict[str, Split] = {}
    for name, meaning in meanings.items():
        splits[name] = evaluation if meaning == "evaluation" else _as_split(meaning)
    return splits


def _as_split(meaning: str) -> Split:
    return next(split for split in SPLITS if split == meaning)


def is_surely_split(name: str) -> bool:
    """Returns whether a folder name means a split, and is too long for a person's initials."""
    return bool(_meaning(name)) and len(_letters(name)) > _SHORT


def _mentions(name: str) -> set[str]:
    """Returns the meanings of the words in a name such as `happy_train`."""
    words = re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+", name)
    return {meaning for word in words if len(word) > _SHORT and (meaning := _meaning(word))}


class Place(NamedTuple):
    """What the folders of a photo mean."""

    split: Split | None  # None where no folder means a split
    label: str  # the name of the class folder
    person: str | None


@dataclass
class Layout:
    """The place of each photo, None for one that is in none, and notes for the user."""

    places: list[Place | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    class_depth: int = 1  # folders from the root to a class folder


Folders = tuple[str, ...]  # the folders of a photo from the root down, without the file name


def find_layout(photos: Sequence[Folders]) -> Layout:
    """Finds out what the folders of photos mean;
    raises FerVitError where they could mean something else.
    """
    tops = sorted({folders[0] for folders in photos if folders})
    splits = split_names(tops)
    others = [name for name in tops if name not in splits]
    if splits and ("train" in splits.values() or not others):
        layout = _split_first(photos, splits, others)
    else:
        layout = _class_first(photos, splits, others)
    _check_persons([place for place in layout.places if place])
    return layout


def _split_first(photos: Sequence[Folders], splits: dict[str, Split], others: list[str]) -> Layout:
    if not any(len(folders) > 1 and folders[0] in splits for folders in photos):
        raise FerVitError(
            f"Expected class folders in {name_text(splits)}, but got photos without a class. "
            "Sort them into a folder for each class, or rename a class that is named like a split."
        )
    layout = Layout(notes=_spelling(splits), class_depth=2)
    for folders in photos:
        placed = len(folders) > 1 and folders[0] in splits
        layout.places.append(
            _place(splits[folders[0]], folders[1], folders[2:]) if placed else None
        )
    layout.notes += [
        f"{name} is not a split and was not read ({_count(photos, name)})." for name in others
    ]
    for name in splits:
        if flat := sum(folders == (name,) for folders in photos):
            layout.notes.append(
                f"Not read, without a class: {counted(flat, 'photo')} directly in {name}."
            )
    return layout


def _class_first(photos: Sequence[Folders], splits: dict[str, Split], others: list[str]) -> Layout:
    inside: dict[str, set[str]] = defaultdict(set)
    for folders in photos:
        if len(folders) > 1:
            inside[folders[0]].add(folders[1])
    _check_tops(others, splits, inside)
    names = set().union(*inside.values())
    inner = split_names(names)
    if names and len(inner) == len(names):
        return _split_second(photos, inner, inside)
    notes = [f"{name} is read as a class, because there is no train folder." for name in splits]
    places = [_place(None, folders[0], folders[1:]) if folders else None for folders in photos]
    return Layout(places, notes)


def _split_second(
    photos: Sequence[Folders], inner: dict[str, Split], inside: dict[str, set[str]]
) -> Layout:
    classes = {folders[0] for folders in photos if folders}
    if lacking := sorted(classes - inside.keys()):
        raise FerVitError(
            f"Expected the folders {name_text(sorted(inner))} in every class, but {lacking[0]} has "
            "none of them. Add them, or move all photos directly into the class folders."
        )
    layout = Layout(notes=_spelling(inner))
    for folders in photos:
        placed = len(folders) > 1
        layout.places.append(_place(inner[folders[1]], folders[0], folders[2:]) if placed else None)
    if flat := sum(len(folders) == 1 for folders in photos):
        layout.notes.append(
            f"Not read, without a split: {counted(flat, 'photo')} beside the split folders."
        )
    return layout


def _place(split: Split | None, label: str, below: Folders) -> Place:
    """Returns a place; raises FerVitError for a folder below a class that is named like a split."""
    for name in below:
        if is_surely_split(name):
            raise FerVitError(
                f"Expected a person's folder in the class {label}, but got {name}, which is named "
                "like a split. Use SPLIT/CLASS/PERSON or CLASS/SPLIT/PERSON for every photo, or "
                "rename it."
            )
    return Place(split, label, below[0] if below else None)


def _check_tops(others: list[str], splits: dict[str, Split], inside: dict[str, set[str]]) -> None:
    """Raises FerVitError when folders at the top may be splits without a usual name."""
    labels = {canonical(name) for name in others}
    for name in splits:
        if inside[name] and {canonical(label) for label in inside[name]} <= labels:
            raise FerVitError(
                f"Expected a train folder beside {name}, which holds folders of classes, but got "
                f"{name_text(others)}. Move them into a folder named train."
            )
    tops = [*others, *splits]
    mentioned = set().union(*map(_mentions, tops))
    if len(mentioned) > 1:
        raise FerVitError(
            f"Expected class folders, but got {name_text(sorted(tops))}, which name splits. "
            "Use train/CLASS, val/CLASS and test/CLASS."
        )
    if len(tops) > 1 and all(map(_SERIES.fullmatch, tops)) and any(inside.values()):
        raise FerVitError(
            f"Expected class folders, but {name_text(tops)} are parts of a data set. "
            "Use train/CLASS, val/CLASS and test/CLASS."
        )


def _check_persons(places: Sequence[Place]) -> None:
    """Raises FerVitError when the classes may be persons, or parts,
    that hold the folders of classes.
    """
    persons: dict[str, set[str]] = defaultdict(set)
    for place in places:
        persons[canonical(place.label)] |= {place.person} if place.person else set()
    names = set().union(*persons.values())
    if len(set().union(*map(_mentions, names))) > 1:
        raise FerVitError(
            f"Expected persons' folders in the classes, but got {name_text(sorted(names))}, which "
            "name splits. Use CLASS/train, CLASS/val and CLASS/test."
        )
    classes_are_known = 2 * len(persons.keys() & {*EXPRESSIONS}) >= len(persons)

    known = {canonical(name) for name in names} & {*EXPRESSIONS}
    like_classes = len(known) >= 2 and 2 * len(known) >= len(names)

    crossed = len(persons) > 1 and all(some == names for some in persons.values())
    few = len(names) == 2 or 2 <= 2 * len(names) <= len(persons)
    numbered = all(map(_PERSON.search, names))
    unclear = crossed and few and len(names) > 1 and not numbered

    if (like_classes or unclear) and not classes_are_known:
        raise FerVitError(
            f"Expected class folders, but all of {name_text(sorted(persons))} hold the folders "
            f"{name_text(sorted(names))}. Put the class above the person: CLASS/PERSON; or name "
            "parts train, val and test, and persons by a number."
        )


def _spelling(splits: dict[str, Split]) -> list[str]:
    """Returns a note about folders whose split is guessed from an unusual name."""
    if {name.casefold() for name in splits} <= _USUAL and len({*splits.values()}) == len(splits):
        return []
    read = ", ".join(f"{name} as {split}" for name, split in sorted(splits.items()))
    return [f"Read by the folders' names: {read}."]


def _count(photos: Sequence[Folders], top: str) -> str:
    return counted(sum(folders[:1] == (top,) for folders in photos), "photo")
