"""Makes the next model that fer-vit ships, from the data sets to its card: hours on a CPU.

make shipped-model FERPLUS=ferplus.zip FAIRFACE=fairface.zip
python -m benchmarks.shipped_model ferplus.zip fairface.zip runs/shipped --seeds 3

The models that ship today judge the faces of both data sets. A new network learns from their votes and from people's,
with faces changed as photos from the street are; several shorter trainings from there are averaged, and rare
expressions gain. What is there already is not made again, and a training that was interrupted resumes: run it as often
as it takes. OUTPUT/stages.json has the seconds (of all attempts) and the result of each stage.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.ablation import ROOT, figures, newest
from benchmarks.machine import arguments
from fer_vit.files import atomic_write

NAME = "ferplus-fairface-small"
STUDENT, FINISH = (ROOT / "configs" / f"ferplus_fairface_{name}.yaml" for name in ("small", "finish"))
JUDGES = ("ferplus-small", NAME)
BOTH_CORES = ("--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=48")
RARE = "0.15"
"""How much of the logarithm of its share in training an expression's logit loses (docs/ablation.md)."""
PER_CLASS = 8000
"""Unlabelled faces of one predicted expression at most: most of FairFace's are neutral or happy."""


class Stage(NamedTuple):
    """A command; the product of a training is the folder of its runs, that of a script the file of what it prints."""

    name: str
    product: Path
    words: list[str]

    @property
    def done(self) -> bool:
        """Whether the product is there; of a training, its last epoch's figures."""
        return any(self.product.rglob("val.json")) if self.words[0] == "fit" else self.product.exists()


def stages(ferplus: Path, fairface: Path, output: Path, seeds: int) -> Iterator[Stage]:
    """Yields the stages in order; the paths are of the data sets and of the folder for everything that is made."""
    faces, more, votes = (output / f"{name}.parquet" for name in ("ferplus", "fairface", "votes"))
    yield Stage("prepare FERPlus", faces, ["prepare", "ferplus", str(ferplus), str(faces), "--labels", "soft"])
    yield Stage("prepare FairFace", more, ["prepare", "fairface", str(fairface), str(more)])
    also = ["--unlabelled", str(more), "--per_class", str(PER_CLASS)]
    yield Stage("votes", votes, ["distill", *JUDGES, str(faces), str(votes), *also])
    student, model = output / "student", output / NAME
    yield fit(student, votes, 0, f"--config={STUDENT}", *BOTH_CORES)
    finished = [output / f"finish-{seed}" for seed in range(seeds)]
    for seed, finish in enumerate(finished):
        yield fit(finish, votes, seed, f"--config={STUDENT}", f"--config={FINISH}", f"--model.init={newest(student)}")
    learned = [f"--checkpoint={newest(finish)}" for finish in finished]
    found = ["--calibrate", str(faces), "--logit_adjust", RARE]
    yield Stage("export", model, ["export", str(model), *learned, *found, "--half"])
    measured = [str(faces), str(model), "--fairface", str(more), "--write"]
    yield Stage("card", output / "card.md", ["-m", "benchmarks.model_card", *measured])
    doubts = [str(faces), str(ferplus), str(model), "--write"]
    yield Stage("doubts", output / "doubts.md", ["-m", "benchmarks.unsure", *doubts])


def fit(folder: Path, manifest: Path, seed: int, *words: str) -> Stage:
    """A training, and the validation of its last epoch."""
    where = [f"--trainer.logger.init_args.save_dir={folder}", f"--data.manifest={manifest}"]
    return Stage(f"train {folder.name}", folder, ["fit", *words, *where, f"--seed_everything={seed}"])


def run(stage: Stage) -> str:
    """Runs a stage, or resumes it; returns its result: figures, or the last line that it printed."""
    words, script = stage.words, stage.words[0] == "-m"
    program = [sys.executable] if script else [sys.executable, str(ROOT / "cli.py")]
    print(f"\n== {stage.name}\n{shlex.join(['python' if script else 'fer-vit', *words])}", flush=True)
    if words[0] != "fit":
        printed = subprocess.run([*program, *words], stdout=subprocess.PIPE, text=True, check=True).stdout
        print(printed, end="", flush=True)
        if script:
            stage.product.write_text(printed)
        return printed.strip().rpartition("\n")[2]
    last = newest(stage.product)
    subprocess.run([*program, *words, *([f"--ckpt_path={last}"] if last else [])], check=True)
    subprocess.run([*program, "validate", *words[1:], f"--ckpt_path={newest(stage.product)}"], check=True)
    return json.dumps(figures(stage.product))


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("ferplus", type=Path, help="FERPlus, a folder or zip")
    parser.add_argument("fairface", type=Path, help="FairFace, a folder or zip")
    parser.add_argument("output", type=Path, help="folder of everything that is made")
    parser.add_argument("--seeds", type=int, default=3, help="of the second training")
    args = parser.parse_args()
    book = args.output / "stages.json"
    notes: dict[str, dict[str, object]] = json.loads(book.read_text()) if book.is_file() else {}
    for stage in stages(args.ferplus, args.fairface, args.output, args.seeds):
        note = notes.setdefault(stage.name, {"seconds": 0.0, "result": None})
        if stage.done:
            print(f"{stage.name}: {note['result'] or 'is there'}")
            continue
        stage.product.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        try:
            note["result"] = run(stage)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{stage.name} failed ({error.returncode}); the same command goes on from here.")
        finally:
            note["seconds"] = round(note["seconds"] + time.monotonic() - start)  # type: ignore[operator]
            with atomic_write(book) as new:
                new.write_text(json.dumps(notes, indent=1))


if __name__ == "__main__":
    main()
