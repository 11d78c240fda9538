"""Writes the episodes of people as a table, or as a TextGrid for Praat and ELAN."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fer_vit.faces import NO_FACE
from fer_vit.fields import INTERVAL_FIELDS
from fer_vit.files import atomic_write
from fer_vit.heads import MOVEMENTS
from fer_vit.predict.people import MIN_VIDEO_SECONDS, Episode, People
from fer_vit.report.table import write_fields
from fer_vit.texts import as_text


def is_textgrid(path: Path) -> bool:
    """Returns whether a path has the suffix of a TextGrid."""
    return path.suffix.lower() == ".textgrid"


def write_intervals(
    path: Path,
    people: People,
    starts: Mapping[str, float],
    overwrite: bool,
    heads: Sequence[str] = (),
) -> None:
    """Writes the episodes of people as a table or, by its suffix, as a TextGrid of one video.

    Times count from the start of each file, as other programs play it; `starts` has the first time
    in each file, in seconds. Only episodes of `heads` are written; empty: of all heads.
    """
    episodes = []
    for episode in people.episodes(heads):
        shift = starts[episode.path]
        shifted = replace(episode, start=episode.start - shift, end=episode.end - shift)
        episodes.append(shifted)
    if is_textgrid(path):
        end = max((end - starts[video] for video, (_, end) in people.spans.items()), default=1.0)
        with atomic_write(path, overwrite=overwrite) as file:
            file.write_text(format_textgrid(episodes, end), encoding="utf-8")
        return
    with write_fields(path, INTERVAL_FIELDS, overwrite=overwrite) as table:
        table.write([vars(episode) for episode in episodes])


def format_textgrid(episodes: Sequence[Episode], end: float) -> str:
    """Formats the episodes of a video of `end` seconds as a TextGrid, a tier for each track.

    A video without a face has one empty tier, because Praat reads no TextGrid without tiers.
    """
    start = min([0.0, *(episode.start for episode in episodes)])
    tiers: dict[str, list[Episode]] = {}
    for episode in episodes:
        name = f"track {episode.track}"
        if episode.head == MOVEMENTS:  # they overlap, so each has a tier
            name = f"{name} {episode.label}"
        tiers.setdefault(name, []).append(episode)
    if not tiers:
        tiers[NO_FACE] = []
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", *_format_span(start, end)]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, tier) in enumerate(tiers.items(), 1):
        intervals = list(_fill_gaps(tier, start, end))
        lines += [
            f"item [{number}]:",
            'class = "IntervalTier"',
            f'name = "{name}"',
            *_format_span(start, end),
        ]
        lines.append(f"intervals: size = {len(intervals)}")
        for index, interval in enumerate(intervals, 1):
            text = as_text(interval.label).replace('"', '""')
            lines += [
                f"intervals [{index}]:",
                *_format_span(interval.start, interval.end),
                f'text = "{text}"',
            ]
    return "\n".join(lines) + "\n"


def _format_span(start: float, end: float) -> list[str]:
    return [f"xmin = {start:.6f}", f"xmax = {end:.6f}"]


class TierInterval(NamedTuple):
    """An interval of a tier in a TextGrid."""

    start: float  # seconds
    end: float
    label: str  # empty: a gap


def _fill_gaps(tier: Iterable[Episode], start: float, end: float) -> Iterator[TierInterval]:
    """Yields the intervals of a tier from `start` to `end`, without gaps between them."""
    for episode in tier:
        if episode.start - start >= MIN_VIDEO_SECONDS:
            yield TierInterval(start, episode.start, "")
        yield TierInterval(max(start, episode.start), episode.end, episode.label)
        start = episode.end
    if end - start >= MIN_VIDEO_SECONDS:
        yield TierInterval(start, end, "")
