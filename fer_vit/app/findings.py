"""Collects what was found in the files of a task, and writes sentences about the files."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fer_vit.face.image import UNREADABLE, UNREADABLE_VIDEO
from fer_vit.faces import NO_FACE, OK, READ_STATUSES, Faces, no_faces
from fer_vit.visualization.timelines import Video, Watched
from fer_vit.wording import counted, format_counts

MAX_NAMED_PEOPLE = 8  # most people that a message about a clip names

REMEDIES = {  # the ends of sentences about files with a status: what a user can do
    UNREADABLE: (
        "is not a photo that fer-vit can open. Save it as JPEG or PNG, and choose it again."
    ),
    UNREADABLE_VIDEO: "is not a clip that fer-vit can open. Save it as MP4, and choose it again.",
}


@dataclass
class FileFaces:
    """What was found in a photo or clip.

    Attributes:
        num_faces: The number of faces in the photo, or in all frames of the clip.
        statuses: The statuses of the photo or of the frames.
        rows: The number of rows in the table.
        faces: The faces of a photo. The faces of a clip are only counted.
    """

    num_faces: int = 0
    statuses: set[str] = field(default_factory=set)
    rows: int = 0
    faces: Faces = field(default_factory=no_faces)

    def add(self, faces: Faces) -> None:
        """Adds the photo, or a frame of the clip, with its faces."""
        (info,) = faces.infos
        self.statuses.add(info.status)
        self.rows += max(1, len(faces))
        self.num_faces += len(faces)
        if info.frame is None:
            self.faces = faces


@dataclass
class Findings:
    """What was found in the files of a task.

    Attributes:
        clips: The files that are clips.
        files: What was found in each photo and clip, by path.
        people: The people in the clips.
    """

    clips: Sequence[Path]
    files: dict[str, FileFaces] = field(default_factory=dict)
    people: Watched = field(default_factory=Watched)

    def note(self, photos: Iterable[Faces]) -> Iterator[Faces]:
        """Adds the faces of each photo and frame, then yields them; the iterator is lazy."""
        for faces in photos:
            (info,) = faces.infos
            self.files.setdefault(info.path, FileFaces()).add(faces)
            if Path(info.path) in self.clips:
                self.people.add(faces)
            yield faces

    def faces_by_photo(self) -> dict[str, Faces]:
        """Returns the faces of each file that is no clip, by path."""
        photos = {}
        for path, file in self.files.items():
            if Path(path) not in self.clips:
                photos[path] = file.faces
        return photos

    def messages(self) -> list[str]:
        """Returns a sentence about each file with faces."""
        messages = []
        for name, file in self.files.items():
            if name in self.people.videos and file.num_faces:
                messages.append(describe_clip(name, self.people.videos[name]))
            elif file.num_faces:
                labels = format_counts(Counter(file.faces.label.tolist()))
                messages.append(f"{name}: {counted(len(file.faces), 'face')} ({labels}).")
        return messages

    def warnings(self) -> list[str]:
        """Returns sentences about the files that have no face or cannot be read."""
        warnings: list[str] = []
        for name, file in self.files.items():
            warnings += describe_problems(name, file)
        return warnings


def describe_clip(name: str, video: Video) -> str:
    """Returns sentences about the people in a clip."""
    tracks = sorted(video.people)
    mostly = []
    for track in tracks[:MAX_NAMED_PEOPLE]:
        ((label, _),) = video.people[track].labels.most_common(1)
        mostly.append(f"person {track} mostly {label}")
    if len(tracks) > MAX_NAMED_PEOPLE:
        mostly.append(f"and {len(tracks) - MAX_NAMED_PEOPLE} more")
    sentence = f"{name}: {', '.join(mostly)}."
    return f"{sentence} {video.cuts.describe()}." if video.cuts.count else sentence


def describe_problems(name: str, file: FileFaces) -> Iterator[str]:
    """Yields sentences about a photo or clip that has no face or cannot be read."""
    if not file.num_faces and NO_FACE in file.statuses:
        yield f"No face found in {name}."
    for status in sorted(file.statuses - {OK, NO_FACE}):
        if status in READ_STATUSES:
            yield f"{name}: {status}."
        elif file.rows == 1 and status in REMEDIES:
            yield f"{name} {REMEDIES[status]}"
        else:
            part = " to its end" if file.rows > 1 else ""
            yield f"{name} cannot be read{part}: {status}."
