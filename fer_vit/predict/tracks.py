"""Tracks: which faces of a video are one person's, by where they are and how they move."""

from dataclasses import dataclass, field
from itertools import count

import numpy as np

from fer_vit.face.detect import Face, overlap
from fer_vit.geometry import Array

MAX_GAP = 2.0
"""Seconds after which a face that was away comes back as another track."""
MEMORY = 0.2
"""Seconds over which a track's speed is averaged."""
MAX_DISTANCE, MAX_SPEED = 0.6, 1.5
"""How far landmarks may lie from where a track expects them: in widths of the face, and in widths more a second."""
MAX_GROWTH = 1.7
"""The largest ratio of a face's sizes from one frame to the next in which it is seen."""
NEVER = 1e6
"""The cost of a pair that cannot be."""


@dataclass
class Track:
    """One person's face: its number, and what was last seen of it."""

    number: int
    face: Face
    seconds: float
    speed: Array = field(default_factory=lambda: np.zeros(2))  # pixels a second (x, y)

    def expected(self, seconds: float) -> Face:
        """Returns the face where it would be now if it moved on at its speed."""
        return self.face.moved(1.0, self.speed * min(abs(seconds - self.seconds), 1.0))

    def cost(self, face: Face, seconds: float) -> float:
        """Returns how badly a face fits: 1 - IoU, plus the landmarks' distance in widths and the gap in seconds."""
        expected, gap = self.expected(seconds), abs(seconds - self.seconds)
        width, other = np.sqrt([np.prod(f.box[2:] - f.box[:2]) for f in (expected, face)])
        distance = float(np.linalg.norm(face.landmarks - expected.landmarks, axis=1).mean() / max(width, other))
        if distance > MAX_DISTANCE + MAX_SPEED * min(gap, MAX_GAP) or not 1 / MAX_GROWTH < other / width < MAX_GROWTH:
            return NEVER
        return 1 - overlap(expected, face) + distance + gap

    def see(self, face: Face, seconds: float) -> None:
        """Takes a face as the track's newest."""
        passed = seconds - self.seconds
        if passed > 0:
            speed = (face.landmarks - self.face.landmarks).mean(0) / passed
            self.speed = self.speed + (speed - self.speed) * (1 - np.exp(-passed / MEMORY))
        self.face, self.seconds = face, seconds


class Tracker:
    """Numbers the faces of a video, frame by frame.

    Faces and tracks are assigned to each other at the least total cost (Hungarian method), where a track is expected to
    move on at its speed, as in SORT (Bewley et al. 2016).
    """

    def __init__(self) -> None:
        self._tracks: list[Track] = []
        self._numbers = count()
        self._seconds = 0.0

    def expected(self, seconds: float) -> list[Face]:
        """Returns the last frame's faces where they would be now."""
        return [track.expected(seconds) for track in self._tracks if track.seconds == self._seconds]

    def number(self, faces: list[Face], seconds: float) -> list[int]:
        """Returns the track of each face in the next frame."""
        from scipy.optimize import linear_sum_assignment  # only here: it takes time to import

        tracks = self._tracks = [
            track  # nobody was away between two frames, however far apart these were taken
            for track in self._tracks
            if track.seconds == self._seconds or abs(seconds - track.seconds) <= MAX_GAP
        ]
        costs = np.array([[track.cost(face, seconds) for face in faces] for track in tracks])
        costs = costs.reshape(len(tracks), len(faces))
        pairs = zip(*linear_sum_assignment(costs), strict=True)
        chosen = {face: tracks[row] for row, face in pairs if costs[row, face] < NEVER}
        for index, face in enumerate(faces):
            if index in chosen:
                chosen[index].see(face, seconds)
            else:
                chosen[index] = Track(next(self._numbers), face, seconds)
                self._tracks.append(chosen[index])
        self._seconds = seconds
        return [chosen[index].number for index in range(len(faces))]
