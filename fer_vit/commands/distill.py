"""The verb `distill`: mixes the predictions of trained models into the votes that the next one learns from."""

from pathlib import Path

import torch

from fer_vit.data.manifest import Manifest
from fer_vit.errors import check_number
from fer_vit.evaluate.labelled import evaluate_logits
from fer_vit.files import check_output
from fer_vit.predict.recognizer import load


def distill(
    teachers: list[Path], manifest: Path, output: Path, *, weight: float = 0.5, overwrite: bool = False
) -> None:
    """Writes a manifest in which the votes of training faces are mixed with the predictions of trained models.

    The mean probabilities of the teachers, each looking at a face and at its mirror image, are mixed with the votes;
    `fer-vit fit` learns from both. The faces of val and test keep their votes. Hinton et al., "Distilling the Knowledge
    in a Neural Network" (2015), at temperature 1.

    Examples:
        fer-vit distill large.ckpt data/ferplus.parquet data/distilled.parquet

        fer-vit distill a.ckpt b.ckpt c.ckpt data/ferplus.parquet data/distilled.parquet --weight 0.7

    Args:
        teachers: Checkpoints of `fer-vit fit`, folders of `fer-vit export` or names from `fer-vit models`.
        manifest: What the teachers learned from: a table of `fer-vit prepare` with labels.
        output: The manifest to write.
        weight: Weight of the teachers in the new votes, from 0 to 1.
        overwrite: Whether an existing manifest may be replaced; never the one that is read.
    """
    check_number("weight", weight, 0, 1)
    check_output(output, overwrite)
    rows = Manifest.read(manifest)
    rows.check_copy(output)
    probabilities = []
    for teacher in teachers:
        model = load(str(teacher))
        views = [evaluate_logits(model, manifest, "train", mirrored) for mirrored in (False, True)]
        votes = views[0][1]
        probabilities.append(torch.stack([logits.softmax(-1) for logits, _ in views]).mean(0))
        agreement = (probabilities[-1].argmax(-1) == votes.argmax(-1)).float().mean()
        print(f"{teacher}: agrees with {agreement:.1%} of {len(votes):,} faces")
    mixed = (1 - weight) * votes + weight * torch.stack(probabilities).mean(0)
    rows.with_votes("train", mixed.double().numpy()).write(output)
    print(f"{output}: {len(rows):,} rows")
