"""The sections of the page of an evaluation: results in words, scores, and groups."""

from collections.abc import Mapping, Sequence

import numpy as np

from fer_vit.errors import printable
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.groups import FOUND, MIN_GROUP
from fer_vit.evaluation.head_sections import has_targets, head_sections
from fer_vit.evaluation.names import altered_rows, group_rows
from fer_vit.evaluation.page import Section
from fer_vit.evaluation.results import (
    AlteredMean,
    Evaluation,
    Group,
    Grouping,
    LabelResults,
    Scores,
)
from fer_vit.evaluation.score_table import (
    MEANINGS_OF_SCORES,
    ROBUSTNESS_TEXT,
    altered_chart,
    class_table,
    group_chart,
    score_table,
)
from fer_vit.geometry import IntArray
from fer_vit.report.intervals import interval_chart
from fer_vit.report.plots import calibration_plot
from fer_vit.stats.bootstrap import MIN_UNITS
from fer_vit.stats.estimate import Estimate, estimate_text
from fer_vit.stats.scores import occurring, recall_name
from fer_vit.wording import counted

MAX_RARE = 3  # most rare labels, and most other labels, that a sentence names

VOTES_TEXT = "The accuracy by the number of annotators who chose the label of the face."
CALIBRATION_TEXT = (
    "On the dashed line, confidence equals accuracy. Below it, the model is too confident. The "
    "area of a dot grows with its number of faces; dots of few faces scatter."
)


def evaluation_sections(evaluation: Evaluation, faces: EvaluatedFaces) -> list[Section]:
    """Returns the sections of the page of an evaluation."""
    scores = scores_section(evaluation, len(np.unique(faces.units)))
    heads = []
    compared_heads = evaluation.compared_heads or {}
    for head, results in evaluation.heads.items():
        if has_targets(head, results.measured):
            heads += head_sections(head, results, compared_heads.get(head, {}))
    groups = [group_section(column, grouping) for column, grouping in evaluation.by.items()]
    labelled = evaluation.labelled
    if labelled is None:
        return [scores, *heads, *groups]

    calibration = calibration_plot(faces.probabilities.max(1), faces.correct)
    sections = [
        Section("Result", lines=result_lines(evaluation, labelled)),
        scores,
        class_section(evaluation.scores, labelled.confusion, labelled.labels),
        Section("Calibration", CALIBRATION_TEXT, plots=[calibration]),
        *heads,
    ]
    if evaluation.folds:
        sections.append(fold_section(evaluation.folds))
    sections += groups
    if labelled.by_votes:
        sections.append(votes_section(labelled.by_votes))
    if evaluation.robustness:
        sections.append(robustness_section(evaluation.robustness))
    return sections


def result_lines(evaluation: Evaluation, labelled: LabelResults) -> list[str]:
    """Returns the main results in words."""
    scores = evaluation.scores
    labels = labelled.labels
    sizes = labelled.confusion.sum(1)  # (C,)
    frequent = labels[sizes.argmax()]
    share = sizes.max() / sizes.sum()
    accuracy = estimate_text(scores["accuracy"], ".1%", named=True)
    lines = [
        f"The prediction equals the label for {accuracy} of {sizes.sum():,} faces. Predicting "
        f"{frequent} for every face has an accuracy of {share:.1%}."
    ]

    recalls = {}
    num_faces = {}
    for label, size in zip(labels, sizes.tolist(), strict=True):
        if size:
            recalls[label] = scores[recall_name(label)]
            num_faces[label] = size
    if len(recalls) > 1:
        lines += worst_lines(recalls, num_faces)
    comparison = evaluation.comparison
    if comparison is not None:
        difference = estimate_text(comparison.differences["accuracy"], "+.1%", named=True)
        lines.append(
            f"On the same {comparison.num_faces:,} faces, the accuracy minus the other model's is "
            f"{difference}. Only the model is correct on {comparison.num_only_first:,}, only the "
            f"other on {comparison.num_only_second:,}: p = {comparison.p:.2g} (McNemar's exact "
            "test, and not below the p of a t test over persons or photos; the interval is that of "
            "the test)."
        )
    return lines


def worst_lines(recalls: Mapping[str, Estimate], num_faces: Mapping[str, int]) -> list[str]:
    """Returns lines about the labels with the lowest recalls.

    They name the frequent label with the lowest recall (`MIN_GROUP` faces or more), and the rarer
    labels with a lower recall. The number of faces shows how much such a recall means. The frequent
    label is left out if no label has a higher recall.

    Args:
        recalls: The recall of each label.
        num_faces: The number of faces with each label.
    """
    shares = {label: recall.mean for label, recall in recalls.items()}
    if len({*shares.values()}) == 1:  # no label is found less often than another label
        return []

    # labels with equal recalls are sorted by descending number of faces
    ranking = sorted(shares, key=lambda label: (shares[label], -num_faces[label]))
    frequent = [label for label in ranking if num_faces[label] >= MIN_GROUP]
    last = frequent[0] if frequent else ranking[0]
    rare = ranking[: ranking.index(last)]
    as_often: list[str] = []
    if shares[last] != shares[ranking[-1]]:  # another label is found more often
        as_often = [label for label in ranking if shares[label] == shares[last]]

    named = []
    for label in [*rare[:MAX_RARE], *as_often[:MAX_RARE]]:
        share = estimate_text(recalls[label], ".1%", named=True)
        named.append(f"{label}, in {share} of its {counted(num_faces[label], 'face')}")
    lines = [f"Found least often: {'; '.join(named)}."]
    if len(rare) > MAX_RARE:
        unnamed = counted(len(rare) - MAX_RARE, "label")
        lines.append(
            f"Also found less often than {last}: {unnamed} with fewer than {MIN_GROUP} faces each."
        )
    if len(as_often) > MAX_RARE:
        lines.append(f"Found as often as {last}: {len(as_often) - MAX_RARE:,} more.")
    return lines


def scores_section(evaluation: Evaluation, num_units: int) -> Section:
    """Returns the table of scores, with their meanings."""
    rows, text = _score_rows(evaluation, num_units)
    table = score_table("", rows)
    lines = []
    for name, meaning in MEANINGS_OF_SCORES.items():
        if name in table[0]:
            lines.append(f"{name}: {meaning}.")
    meanings = Section("What the scores mean", lines=lines)

    without_targets = []
    for head, results in evaluation.heads.items():
        if not has_targets(head, results.measured):
            without_targets.append(head)
    unmeasured = []
    if without_targets:
        names = ", ".join(without_targets)
        unmeasured.append(f"Not measured, since no face has a target: {names}.")
    return Section("Scores", text, table, lines=unmeasured, more=[meanings])


def _score_rows(evaluation: Evaluation, num_units: int) -> tuple[dict[str, Scores], str]:
    """Returns the rows of the table of scores, and the text above it.

    `num_units` is the number of persons, or of photos where persons are unknown.
    """
    rows = {"all faces": evaluation.scores}
    text = (
        "In brackets: 95% bootstrap intervals over persons, "
        "or over photos where persons are unknown. Fewer than "
        f"{MIN_UNITS} of these have none, unless all agree on a share."
    )
    if num_units < MIN_UNITS:
        text += f" Here there are {num_units}."
    elif num_units < MIN_GROUP:
        text += (
            f" With fewer than {MIN_GROUP} of these, here {num_units}, the intervals are somewhat "
            "too narrow."
        )
    if evaluation.without_near_duplicates is not None:
        rows["without near-duplicates"] = evaluation.without_near_duplicates
        text += " Near-duplicates are of faces in the original training split."
    elif evaluation.num_near_duplicates:
        text += (
            " Every face has a near-duplicate in the original training split: "
            "no score holds for new faces."
        )
    if evaluation.comparison is not None:
        rows["the other model"] = evaluation.comparison.other_scores
        rows["difference"] = evaluation.comparison.differences
        text += " Difference: the model minus the other, on the same faces."
    return rows, text


def class_section(scores: Scores, confusion: IntArray, labels: Sequence[str]) -> Section:
    """Returns the section with `class_table` and the chart of the recalls."""
    recalls = {}
    num_faces = {}
    for index in occurring(confusion):
        name = printable(labels[index])
        recalls[name] = scores[recall_name(labels[index])]
        num_faces[name] = int(confusion[index].sum())
    text = (
        "The chart has the recall: the share of the faces with a label that have this prediction. "
        "Precision is the share of the faces with a prediction that have this label."
    )
    table = Section("Faces, recall and precision", rows=class_table(scores, confusion, labels))
    drawn = interval_chart(recalls, ".1%", "recall", num_faces)
    return Section("By expression", text, intervals=drawn, more=[table])


def fold_section(folds: Mapping[str, Group]) -> Section:
    """Returns the table of the folds of a cross-validation."""
    text = (
        "Each fold is predicted by the model that was trained without it. Folds are random parts "
        "of the same faces, which no test compares: they differ by chance, and by training."
    )
    table = score_table("fold", group_rows(folds))
    return Section("By fold", text, table, intervals=group_chart(folds))


def votes_section(votes: Mapping[str, Group]) -> Section:
    """Returns the chart and table of the scores by number of votes for the label."""
    numbers = Section("Table", rows=score_table("votes", group_rows(votes)))
    chart = group_chart(votes)
    return Section("By votes for the label", VOTES_TEXT, intervals=chart, more=[numbers])


def robustness_section(robustness: Mapping[str, AlteredMean]) -> Section:
    """Returns the table and the chart of the accuracy on altered images."""
    table = score_table("images", altered_rows(robustness, "accuracy"))
    chart = altered_chart(robustness, "accuracy", ".1%")
    return Section("Robustness", ROBUSTNESS_TEXT, table, intervals=chart)


def group_section(column: str, grouping: Grouping) -> Section:
    """Returns the table of the groups of a column."""
    groups = grouping.groups
    title = f"By {column}"
    sentences = []
    tests = ""
    gap = grouping.gap
    if gap is not None:
        sentences.append(
            f"Worst: {gap.worst}, best: {gap.best}, gap in accuracy: {100 * gap.size:.1f} points "
            "(larger than 0 also by chance, since these faces choose best and worst)."
        )
        tests = (
            "Difference: from the accuracy of all other faces with a value. p: Fisher's exact test "
            "(where several faces are of one person, not below the p of a t test over "
            "persons), with Holm's correction for the number of groups, unless two groups have "
            "all faces and are one test."
        )
    if grouping.small_groups:
        few = ", ".join(f"{name} ({size:,})" for name, size in grouping.small_groups.items())
        sentences.append(
            f"Under {MIN_GROUP} persons or photos, too few to compare (number of faces): {few}."
        )
    if grouping.num_unknown:
        sentences.append(f"Without a value: {grouping.num_unknown:,} faces.")
    drawn_score = FOUND
    if any("accuracy" in group.scores for group in groups.values()):
        drawn_score = "accuracy"
        sentences.append("The chart has the accuracy.")
    text = " ".join(sentences)
    if not groups:
        return Section(title, text)

    chart = group_chart(groups, drawn_score)
    table = score_table(column, group_rows(groups))
    if chart is None:
        return Section(title, f"{text} {tests}".strip(), table)
    numbers = Section("All scores", tests, table)
    return Section(title, text, intervals=chart, more=[numbers])
