"""Teachers of a training run: frozen models whose predictions a student learns from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError, short
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import Recognizer, load


class Teachers:
    """Trained models that judge faces in the very views that a student sees (Beyer et al. 2022).

    Not a module, so that no checkpoint, optimiser or average of weights contains them.

    Args:
        names: What `fer_vit.load` takes. Labels and crops must be the student's; regions may be fewer.
        student: The model that learns.
        device: Where the teachers compute.

    Raises:
        FerVitError: There is no such model, or it sees faces differently.
    """

    def __init__(self, names: Sequence[str], student: RegionViT, device: torch.device) -> None:
        models = [load(name, device) for name in names]
        self.nets = [model.net for model in models]
        self.rows = [shared_regions(name, model, student) for name, model in zip(names, models, strict=True)]

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Returns the mean probability of every class (B, C), at temperature 1."""
        said = [
            net(batch.image, batch.boxes[:, rows], batch.valid[:, rows]).float().softmax(-1)
            for net, rows in zip(self.nets, self.rows, strict=True)
        ]
        return torch.stack(said).mean(0)


def shared_regions(name: str, teacher: Recognizer, student: RegionViT) -> list[int]:
    """Returns the index, among a student's regions, of each region that a teacher reads.

    Raises:
        FerVitError: The teacher, called `name` in messages, has other labels or crops, or a region that is not there.
    """
    spec = teacher.crop_spec
    for what, mine, theirs in (
        ("labels", student.labels, teacher.labels),
        ("img_size", student.config.img_size, spec.size),
        ("align", student.align, spec.align),
        ("template", student.template, spec.template),
    ):
        if mine != theirs:
            raise FerVitError(f"Expected a teacher with {what} {short(mine)}, but {name} has {short(theirs)}.")
    regions = spec.regions if teacher.net.layout.num_regions else ()
    if missing := [region for region in regions if region not in student.config.regions]:
        raise FerVitError(f"The teacher {name} reads the region {missing[0]}. Add it to model.network.regions.")
    return [student.config.regions.index(region) for region in regions]
