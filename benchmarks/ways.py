r"""What each way to a better model brings: the same budget, three seeds each; writes OUTPUT/table.md and regions.png.

python -m benchmarks.ways data/ferplus.parquet runs/ways --votes votes.parquet --more more.parquet \
  --pretrained last.ckpt --teacher ferplus-small

Every row trains the model of configs/ablation.yaml with regions of the stem alone, for as many steps, and is judged
after its last epoch on validation images as they are and altered. Rows on votes, pretraining and a teacher need what
the options name, and are left out without it. Pretraining is on the
faces of both data sets, which `fer-vit distill --unlabelled` puts into one manifest:

fer-vit fit --config pretrain --data.manifest faces.parquet --model.network.tokens region \
  --model.network.embed_dim 140 --model.network.depth 4 --model.network.num_heads 4 \
  --model.network.standardize true --trainer.max_epochs 10
"""

import json
from argparse import Namespace
from dataclasses import asdict

from benchmarks.ablation import arguments
from benchmarks.regions import STEM, finish
from fer_vit.data.transforms import AugmentConfig
from fer_vit.face.regions import REGIONS

HARD = ("eyes covered", "mouth covered", "turned by 30 degrees", "blurred (sigma 1.5 px)", "24 px", "no landmarks")
STEPS = 429
"""Steps of an epoch, for manifests with more faces as well."""
BASE = [*STEM, "model.network.embed_dim=140", f"trainer.limit_train_batches={STEPS}"]
# Of the two trainings of the first ferplus-fairface-small
A_LITTLE = AugmentConfig(
    jitter=0.01, blind=0.02, degrees=15, scale=0.1, brightness=0.1, contrast=0.15, gamma=0.25,
    blur=0.015, shrink=0.3, jpeg=0.5, erase=0.05, cover=0.1,
)  # fmt: skip
FOR_THE_STREET = AugmentConfig(
    jitter=0.02, blind=0.05, degrees=25, scale=0.15, brightness=0.15, contrast=0.3, gamma=0.5,
    blur=0.03, shrink=0.55, jpeg=0.8, erase=0.1, cover=0.25,
)  # fmt: skip


def ways(args: Namespace) -> dict[str, list[str]]:
    """What each row changes, as far as the options name what it needs."""
    mild, street = ([*BASE, f"data.augment={json.dumps(asdict(changes))}"] for changes in (A_LITTLE, FOR_THE_STREET))
    even = "model.network.standardize=true"
    base = [*mild, even]
    # A student has the regions of its teachers
    eleven = [*base, f"model.network.regions={json.dumps(list(REGIONS))}"]
    return {
        "plain": BASE,
        "augmented a little": mild,
        "augmented a little, standardised crops": base,
        "augmented for the street, standardised crops": [*street, even],
        "and two convolutions a halving": [*base, "model.network.stem_convs=2"],
        "and one convolution a halving": [*base, "model.network.stem_convs=1"],
        "and balanced softmax, half": [*base, "model.logit_adjust=0.5"],
        **({"and votes": [*base, f"data.manifest={args.votes}"]} if args.votes else {}),
        **({"and votes, with FairFace": [*base, f"data.manifest={args.more}"]} if args.more else {}),
        **({"and pretraining": [*base, f"model.init={args.pretrained}"]} if args.pretrained else {}),
        **({"and eleven regions, votes": [*eleven, f"data.manifest={args.votes}"]} if args.votes else {}),
        **({"and eleven regions, teacher": [*eleven, f"model.teachers=[{args.teacher}]"]} if args.teacher else {}),
    }


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--votes", help="a manifest of `fer-vit distill`")
    parser.add_argument("--more", help="a manifest of `fer-vit distill --unlabelled`")
    parser.add_argument("--pretrained", help="a checkpoint of pretraining with the network of these rows")
    parser.add_argument("--teacher", help="a model of those regions, which judges faces as the student sees them")
    args = parser.parse_args()
    finish(args, ways(args), HARD)


if __name__ == "__main__":
    main()
