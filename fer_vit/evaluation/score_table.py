"""Tables and charts of scores, with a row for each set of faces."""

from collections.abc import Mapping, Sequence

from fer_vit.errors import printable
from fer_vit.evaluation.names import Cell
from fer_vit.evaluation.results import AlteredMean, Group, Scores
from fer_vit.geometry import IntArray
from fer_vit.report.intervals import IntervalChart, interval_chart
from fer_vit.stats.estimate import NO_RESULT, estimate_text
from fer_vit.stats.scores import is_recall, occurring, recall_name

LOSS_FORM = ".3f"
MEANINGS_OF_SCORES = {  # scores that tables have after the accuracy, in this order
    "macro F1": "the mean over the labels of F1, which combines recall and precision",
    "UAR": "the mean recall of the labels: each label counts the same, also a rare one",
    "calibration error": (
        "how far confidence is from accuracy, in the mean over bins of confidence. Chance adds to "
        "it: of a calibrated model it is about 8% with 100 faces, 3% with 1,000. It has no "
        "interval, because resamples add chance again"
    ),
    "cross-entropy": "against the labels, or the fractions of the votes; lower is better",
    "agreement with an annotator": (
        "how often the prediction equals the label of one annotator, who is drawn at random from "
        "the votes. Where rare votes were dropped (FERPlus), people agree less than this"
    ),
    "agreement of two annotators": (
        "the same for two annotators. The second draw may be the same annotator, so that two "
        "different annotators agree less"
    ),
    "accuracy where unambiguous": "the accuracy on the faces that are not ambiguous",
    "ambiguous": "faces for which several expressions, or none, are likely",
    "face found": "photos in which a face was found",
}
ROBUSTNESS_TEXT = (
    "Every image is corrupted, and its face and landmarks are detected again, unless the row names "
    "another change. Difference: from the unaltered faces. Turns are the mean of both directions. "
    "p: for the difference from the other model on the same faces, by a t test over persons or "
    "photos, with Holm's correction for the number of rows."
)


def score_table(
    head: str, rows: Mapping[str, Mapping[str, Cell]], form: str = ".1%"
) -> list[list[str]]:
    """Returns a table with a row for each set of faces, and a column for each result of any row.

    Recalls are left out: they have their own table. `MEANINGS_OF_SCORES` come last. `form` is the
    format of all means but the cross-entropy; `head` is the name of the first column.
    """
    known: list[str] = []
    for row in rows.values():
        for name, result in row.items():
            if name not in known and not is_recall(name) and cell(result, form) != NO_RESULT:
                known.append(name)
    names = [name for name in known if name not in MEANINGS_OF_SCORES]
    names += [name for name in MEANINGS_OF_SCORES if name in known]

    table = [[head, *names]]
    for title, row in rows.items():
        cells = [title]
        for name in names:
            signed = name.startswith("difference") or title == "difference"
            column_form = LOSS_FORM if name == "cross-entropy" else form
            cells.append(cell(row.get(name), column_form, signed))
        table.append(cells)
    return table


def cell(result: Cell | None, form: str = ".1%", signed: bool = False) -> str:
    """Formats an estimate by `form`, such as ".1%", or a number, a p-value or text."""
    if result is None or isinstance(result, str):
        return result or NO_RESULT
    if isinstance(result, int):
        return f"{result:,}"
    if isinstance(result, float):
        return f"{result:.2g}"
    return estimate_text(result, f"+{form}" if signed else form)


def class_table(scores: Scores, confusion: IntArray, labels: Sequence[str]) -> list[list[str]]:
    """Returns the table of faces, recall and precision of each expression that occurs."""
    rows: dict[str, dict[str, Cell]] = {}
    for index in occurring(confusion):
        label = labels[index]
        guesses = confusion[:, index].sum()
        precision = f"{confusion[index, index] / guesses:.1%}" if guesses else "never predicted"
        rows[label] = {
            "faces": int(confusion[index].sum()),
            "recall": scores[recall_name(label)],
            "precision": precision,
        }
    return score_table("expression", rows)


def group_chart(groups: Mapping[str, Group], score: str = "accuracy") -> IntervalChart | None:
    """Returns the chart of one score of some groups."""
    estimates = {}
    num_faces = {}
    for name, group in groups.items():
        estimates[printable(name)] = group.scores[score]
        num_faces[printable(name)] = group.num_faces
    return interval_chart(estimates, ".1%", score, num_faces)


def altered_chart(
    altered: Mapping[str, AlteredMean], measure: str, form: str
) -> IntervalChart | None:
    """Returns the chart of the means of altered images; `measure` names the mean."""
    estimates = {}
    num_faces = {}
    for name, result in altered.items():
        estimates[printable(name)] = result.estimate
        num_faces[printable(name)] = result.estimate.n
    return interval_chart(estimates, form, measure, num_faces)
