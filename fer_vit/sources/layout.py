"""Finds out which folders of a data set are splits, classes and persons.

The layouts are CLASS/..., SPLIT/CLASS/... and CLASS/SPLIT/... In all of them, a folder directly
below class and split names a person. Ambiguous folders are an error, because a wrong guess trains a
wrong model.
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
from fer_vit.wording import counted, list_names

_WORDS = {  # words for a split; "evaluation" is the test split, or val beside a test split
    "train": "train training trainings traing trn tr learn learning trainval trainvalid fit",
    "val": "val vals valid valids validation validate validating vld vd va "
    "dev devel development tune tuning",
    "test": "test tests testing tst te ts holdout heldout hold held unseen "
    "private final privatetest testprivate",
    "evaluation": "eval evals evaluation evaluate evaluating ev publictest testpublic",
}
_FILL = """
    set sets split splits data dataset datasets db image images img imgs face faces
    photo photos picture pictures pics folder dir sample samples out
    crop crops cropped aligned new the my
"""
_USUAL = {"train", "training", "val", "valid", "validation", "test", "testing"}
_SHORT = 3  # a word for a split with at most this many letters may be a name or initials


def _split_pattern(words: str) -> re.Pattern[str]:
    """Returns a pattern that matches one of the words, with filler words around it."""
    fillers = "|".join(sorted(_FILL.split(), key=len, reverse=True))
    choices = "|".join(words.split())
    return re.compile(rf"(?:{fillers})*(?:{choices})(?:{fillers})*")


_MEANING = {meaning: _split_pattern(words) for meaning, words in _WORDS.items()}
_SERIES = re.compile(
    r"(?:k?fold|split|cv|part|partition|subset|batch|chunk|shard|portion|slice)s?"
    r"[\W_]*(?:\d+|[a-z])",
    re.IGNORECASE,
)
_PERSON = re.compile(
    r"\d|person|subject|participant|proband|actor|actress|individual|people|patient|speaker",
    re.IGNORECASE,
)


def _only_letters(name: str) -> str:
    return re.sub(r"[\W\d_]+", "", normalize("NFKC", name)).casefold()


def _meaning(name: str) -> str | None:
    letters = _only_letters(name)
    for meaning, words in _MEANING.items():
        if words.fullmatch(letters):
            return meaning
    return None


def split_names(names: Iterable[str]) -> dict[str, Split]:
    """Returns the split of each folder name that means a split, in any case and spelling."""
    meanings = {}
    for name in names:
        meaning = _meaning(name)
        if meaning:
            meanings[name] = meaning

    as_split: dict[str, Split] = {split: split for split in SPLITS}
    # beside a test split and without val, folders for evaluation are val
    as_split["evaluation"] = "test"
    if "test" in meanings.values() and "val" not in meanings.values():
        as_split["evaluation"] = "val"
    return {name: as_split[meaning] for name, meaning in meanings.items()}


def is_surely_split(name: str) -> bool:
    """Returns whether a folder name means a split, and is too long for a person's initials."""
    return bool(_meaning(name)) and len(_only_letters(name)) > _SHORT


def _mentions(name: str) -> set[str]:
    """Returns the splits that words in a name mean, such as train in `happy_train`."""
    meanings = set()
    for word in re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+", name):
        meaning = _meaning(word)
        if meaning and len(word) > _SHORT:
            meanings.add(meaning)
    return meanings


def _mention_several_splits(names: Iterable[str]) -> bool:
    """Returns whether names mention more than one split."""
    mentioned = set()
    for name in names:
        mentioned |= _mentions(name)
    return len(mentioned) > 1


class Place(NamedTuple):
    """What the folders of a photo mean."""

    split: Split | None  # None: no folder means a split
    label: str  # the name of the class folder
    person: str | None  # the name of the person's folder


@dataclass
class Layout:
    """What the folders of all photos mean."""

    places: list[Place | None] = field(default_factory=list)  # None: the photo is not read
    notes: list[str] = field(default_factory=list)  # for the user
    class_depth: int = 1  # how many folders deep a class folder lies below the root


Folders = tuple[str, ...]  # the folders of a photo from the root down, without the file name


def find_layout(photos: Sequence[Folders]) -> Layout:
    """Returns what the folders of photos mean; raises FerVitError for ambiguous folders."""
    tops = sorted({folders[0] for folders in photos if folders})
    splits = split_names(tops)
    classes = [name for name in tops if name not in splits]
    if splits and ("train" in splits.values() or not classes):
        layout = _split_first(photos, splits, classes)
    else:
        layout = _class_first(photos, splits, classes)
    _check_persons([place for place in layout.places if place])
    return layout


def _split_first(photos: Sequence[Folders], splits: dict[str, Split], unread: list[str]) -> Layout:
    """Reads SPLIT/CLASS/...; `unread` are the folders beside the split folders."""
    layout = Layout(notes=_note_guessed_splits(splits), class_depth=2)
    for folders in photos:
        place = None
        if len(folders) > 1 and folders[0] in splits:
            place = _read_place(splits[folders[0]], folders[1], folders[2:])
        layout.places.append(place)
    if not any(layout.places):
        raise FerVitError(
            f"Expected class folders in {list_names(splits)}, but got photos without a class. "
            "Sort them into a folder for each class, or rename a class that is named like a split."
        )

    for name in unread:
        layout.notes.append(
            f"{name} is not a split and was not read ({_photos_of_folder(photos, name)})."
        )
    for name in splits:
        without_class = sum(folders == (name,) for folders in photos)
        if without_class:
            layout.notes.append(
                f"Not read, without a class: {counted(without_class, 'photo')} directly in {name}."
            )
    return layout


def _class_first(photos: Sequence[Folders], splits: dict[str, Split], classes: list[str]) -> Layout:
    """Reads CLASS/... or CLASS/SPLIT/...; the folders in `splits` are classes, too."""
    subfolders: dict[str, set[str]] = defaultdict(set)
    for folders in photos:
        if len(folders) > 1:
            subfolders[folders[0]].add(folders[1])
    _check_tops(classes, splits, subfolders)

    names = set().union(*subfolders.values())
    inner_splits = split_names(names)
    if names and len(inner_splits) == len(names):
        return _split_second(photos, inner_splits, subfolders)

    layout = Layout()
    for name in splits:
        layout.notes.append(f"{name} is read as a class, because there is no train folder.")
    for folders in photos:
        place = None
        if folders:
            place = _read_place(split=None, label=folders[0], below=folders[1:])
        layout.places.append(place)
    return layout


def _split_second(
    photos: Sequence[Folders], splits: dict[str, Split], subfolders: dict[str, set[str]]
) -> Layout:
    """Reads CLASS/SPLIT/..., by the split of each folder name, and the folders in each class."""
    classes = {folders[0] for folders in photos if folders}
    without_folders = sorted(classes - subfolders.keys())
    if without_folders:
        raise FerVitError(
            f"Expected the folders {list_names(sorted(splits))} in every class, but "
            f"{without_folders[0]} has none of them. Add them, or move all photos directly into "
            "the class folders."
        )

    layout = Layout(notes=_note_guessed_splits(splits))
    for folders in photos:
        place = None
        if len(folders) > 1:
            place = _read_place(splits[folders[1]], folders[0], folders[2:])
        layout.places.append(place)
    without_split = sum(len(folders) == 1 for folders in photos)
    if without_split:
        layout.notes.append(
            f"Not read, without a split: {counted(without_split, 'photo')} beside the split "
            "folders."
        )
    return layout


def _read_place(split: Split | None, label: str, below: Folders) -> Place:
    """Returns a place; raises FerVitError if a folder below the class is named like a split."""
    for name in below:
        if is_surely_split(name):
            raise FerVitError(
                f"Expected a person's folder in the class {label}, but got {name}, which is named "
                "like a split. Use SPLIT/CLASS/PERSON or CLASS/SPLIT/PERSON for every photo, or "
                "rename it."
            )
    person = below[0] if below else None
    return Place(split, label, person)


def _check_tops(
    classes: list[str], splits: dict[str, Split], subfolders: dict[str, set[str]]
) -> None:
    """Raises FerVitError when folders that would be read as classes look like splits.

    There are three cases. Classes are at the top, and again inside a split (`happy`, `val/happy`),
    so a train folder is missing. Or names mention splits (`happy_train`, `happy_test`). Or names
    are numbered parts of a data set (`fold1`, `fold2`).
    """
    labels = {canonical(name) for name in classes}
    for name in splits:
        labels_inside = {canonical(label) for label in subfolders[name]}
        if labels_inside and labels_inside <= labels:
            raise FerVitError(
                f"Expected a train folder beside {name}, which holds folders of classes, but got "
                f"{list_names(classes)}. Move them into a folder named train."
            )

    tops = [*classes, *splits]
    if _mention_several_splits(tops):
        raise FerVitError(
            f"Expected class folders, but got {list_names(sorted(tops))}, which name splits. "
            "Use train/CLASS, val/CLASS and test/CLASS."
        )
    numbered = all(_SERIES.fullmatch(name) for name in tops)
    if len(tops) > 1 and numbered and any(subfolders.values()):
        raise FerVitError(
            f"Expected class folders, but {list_names(tops)} are parts of a data set. "
            "Use train/CLASS, val/CLASS and test/CLASS."
        )


def _check_persons(places: Sequence[Place]) -> None:
    """Raises FerVitError when folders of persons look like splits, or like classes."""
    persons: dict[str, set[str]] = defaultdict(set)  # the names of persons by class
    for place in places:
        in_class = persons[canonical(place.label)]
        if place.person:
            in_class.add(place.person)
    names = set().union(*persons.values())
    if _mention_several_splits(names):
        raise FerVitError(
            f"Expected persons' folders in the classes, but got {list_names(sorted(names))}, which "
            "name splits. Use CLASS/train, CLASS/val and CLASS/test."
        )

    known_classes = persons.keys() & set(EXPRESSIONS)
    classes_are_known = 2 * len(known_classes) >= len(persons)

    # persons that are named like classes
    named_like_classes = {canonical(name) for name in names} & set(EXPRESSIONS)
    like_classes = len(named_like_classes) >= 2 and 2 * len(named_like_classes) >= len(names)

    # all classes have the same few folders, with names that do not look like persons
    crossed = len(persons) > 1 and all(in_class == names for in_class in persons.values())
    few = len(names) == 2 or 2 <= 2 * len(names) <= len(persons)
    numbered = all(_PERSON.search(name) for name in names)
    unclear = crossed and few and len(names) > 1 and not numbered

    if (like_classes or unclear) and not classes_are_known:
        raise FerVitError(
            f"Expected class folders, but all of {list_names(sorted(persons))} hold the folders "
            f"{list_names(sorted(names))}. Put the class above the person: CLASS/PERSON; or name "
            "parts train, val and test, and persons by a number."
        )


def _note_guessed_splits(splits: dict[str, Split]) -> list[str]:
    """Returns a note about the splits of folders if a name is unusual, or two share a split."""
    usual = {name.casefold() for name in splits} <= _USUAL
    distinct = len(set(splits.values())) == len(splits)
    if usual and distinct:
        return []
    read = ", ".join(f"{name} as {split}" for name, split in sorted(splits.items()))
    return [f"Read by the folders' names: {read}."]


def _photos_of_folder(photos: Sequence[Folders], top: str) -> str:
    return counted(sum(folders[:1] == (top,) for folders in photos), "photo")
