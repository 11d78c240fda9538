"""The content of results.json of a comparison; keys of estimates are in their `numbers`."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from fer_vit.comparison.episodes import EpisodeCounts
from fer_vit.comparison.results import (
    Comparison,
    ContrastTest,
    ContrastWithoutTest,
    Outcome,
    Results,
)
from fer_vit.comparison.study import ConditionCounts, Study
from fer_vit.stats.estimate import plain_estimates


def results_json(
    facts: Mapping[str, str],
    methods: Sequence[str],
    sentences: Mapping[str, Sequence[str]],
    study: Study,
    results: Results,
) -> dict[str, Any]:
    """Returns the content of results.json.

    Args:
        facts: Facts about how the faces were predicted, by name.
        methods: The lines of the methods.
        sentences: The results in words, by the title of a kind of measures.
        study: The study.
        results: The results of the study, with the names that measures have in tables.
    """
    content: dict[str, Any] = dict(facts)
    content["methods"] = "\n".join(methods)
    content["sentences"] = sentences
    content["conditions"] = {
        condition: counts_json(counts) for condition, counts in study.counts().items()
    }
    content["designs"] = designs_json(study)
    if study.episodes:
        content["episodes"] = {
            condition: episodes_json(counts) for condition, counts in study.episodes.items()
        }
        content["seconds in sight for a duration"] = {
            label: room if isfinite(room) else None for label, room in study.rooms.items()
        }
    for outcome in results.outcomes:
        content[outcome.kind.title] = outcome_json(outcome)
    content["ICC(1)"] = results.intraclass
    if study.rest:
        content["without rest"] = [*study.without_rest]
    return plain_estimates(content)


def counts_json(counts: ConditionCounts) -> dict[str, int]:
    """Returns the number of persons, observations and faces in a condition."""
    return {
        "persons": counts.persons,
        "photos or clips": counts.observations,
        "faces": counts.faces,
        "without a face": counts.without_face,
    }


def episodes_json(counts: EpisodeCounts) -> dict[str, int]:
    """Returns the numbers of episodes in a condition, and of those that measures leave out."""
    return {
        "counted": counts.counted,
        "lasting beyond the condition": counts.leaving,
        "too late for a duration": counts.too_late,
        "beginning not seen": counts.without_beginning,
        "beginning not compared": counts.begun_elsewhere,
    }


def designs_json(study: Study) -> dict[str, Any]:
    """Returns how each pair of conditions is compared."""
    designs = {}
    for first, second in study.pairs:
        design = study.design(first, second)
        designs[f"{second} - {first}"] = {
            "paired": design.paired,
            "persons": int(design.persons.sum()),
            "left out": study.names_of(design.excluded),
        }
    return designs


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Returns the results of measures of one kind."""
    return {
        "means": outcome.means,
        "differences": differences_json(outcome.comparisons),
        "missing": missing_json(outcome.comparisons),
    }


def differences_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Returns the tests by name of the contrast; None where a test is missing."""
    differences: dict[str, dict[str, Any] | None] = {}
    for comparison in comparisons:
        if isinstance(comparison, ContrastTest):
            differences[comparison.name] = numbers_json(comparison)
        else:
            differences[comparison.name] = None
    return differences


def missing_json(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Returns the reasons of missing tests, by name of the contrast."""
    reasons = {}
    for comparison in comparisons:
        if isinstance(comparison, ContrastWithoutTest):
            reasons[comparison.name] = comparison.reason
    return reasons


def numbers_json(comparison: ContrastTest) -> dict[str, Any]:
    """Returns the numbers of a test."""
    test = comparison.test
    return {
        "difference": test.difference,
        "t": test.t,
        "df": test.df,
        "p": test.p,
        "p by ranks": test.p_by_ranks,
        "g": test.g,
        "persons": [test.num_first, test.num_second],
        "p corrected": comparison.p_corrected,
    }
