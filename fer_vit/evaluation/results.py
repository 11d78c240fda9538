"""The results of an evaluation as values, each with the faces that it is of."""

from dataclasses import dataclass

from fer_vit.report.estimate import Estimate


@dataclass(frozen=True)
class FaceEstimate(Estimate):
    """A result over faces with its 95% interval."""

    faces: int  # number of faces with a value
