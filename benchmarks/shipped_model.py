"""Trains the next shipped model, from the data sets to its card: hours on a CPU.

make shipped-model FERPLUS=ferplus.zip FAIRFACE=fairface.zip
python -m benchmarks.shipped_model ferplus.zip fairface.zip runs/shipped --seeds 3

A new network is trained on both data sets: on the predictions of the shipped models for each
augmented face and the annotators' votes, with strong augmentation. Several shorter trainings start
from it and are averaged. Finished stages are skipped and interrupted trainings resume, so run the
command again after an interruption. OUTPUT/stages.json has the seconds (of all attempts) and the
result of each stage.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.ablation import FER_VIT, ROOT, evaluation, figures, newest, results_file
from benchmarks.machine import run_main
from fer_vit.files import atomic_write

NAME = "ferplus-fairface-small"
STUDENT, FINISH = (
    ROOT / "configs" / f"ferplus_fairface_{name}.yaml" for name in ("small", "finish")
)
BOTH_CORES = ("--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=48")
RARE = "0.15"
"""Strength of the logit adjustment."""


class Stage(NamedTuple):
    """A command and its product: the folder of a training's runs, the output of a script,
    or a written file.
    """

    name: str
    product: Path
    words: list[str]

    @property
    def done(self) -> bool:
        """Whether the product exists; for a training, the evaluation of its last epoch."""
        if self.words[0] == "fit":
            return results_file(self.product).exists()
        return self.product.exists()


def stages(ferplus: Path, fairface: Path, output: Path, seeds: int) -> Iterator[Stage]:
    """Yields the stages in order, given the two data sets and the output folder."""
    faces, both = (output / f"{name}.parquet" for name in ("ferplus", "both"))
    yield Stage(
        "prepare FERPlus",
        faces,
        ["prepare", "ferplus", str(ferplus), str(faces), "--labels", "soft"],
    )
    added = ["--add", str(faces)]
    yield Stage("prepare FairFace", both, ["prepare", "fairface", str(fairface), str(both), *added])
    student = output / "student"
    model = output / NAME
    yield fit(student, both, 0, f"--config={STUDENT}", *BOTH_CORES)
    finished = [output / f"finish-{seed}" for seed in range(seeds)]
    for seed, finish in enumerate(finished):
        yield fit(
            finish,
            both,
            seed,
            f"--config={STUDENT}",
            f"--config={FINISH}",
            f"--model.init={newest(student)}",
        )
    checkpoints = [f"--checkpoint={newest(finish)}" for finish in finished]
    calibration = ["--calibrate", str(faces), "--logit_adjust", RARE]
    yield Stage("export", model, ["export", str(model), *checkpoints, *calibration, "--half"])
    measured = [str(faces), str(model), "--write=true"]
    yield Stage("card", output / "card.md", ["-m", "benchmarks.model_card", *measured])


def fit(folder: Path, manifest: Path, seed: int, *words: str) -> Stage:
    """Returns the stage of a training."""
    where = [f"--trainer.logger.init_args.save_dir={folder}", f"--data.manifest={manifest}"]
    return Stage(
        f"train {folder.name}", folder, ["fit", *words, *where, f"--seed_everything={seed}"]
    )


def run(stage: Stage) -> str:
    """Runs or resumes a stage. Returns its result: accuracy and UAR, or the last printed line."""
    words = stage.words
    script = words[0] == "-m"
    program = [sys.executable] if script else FER_VIT
    shown = ["python" if script else "fer-vit", *words]
    print(f"\n== {stage.name}\n{shlex.join(shown)}", flush=True)
    if words[0] != "fit":
        printed = subprocess.run(
            [*program, *words], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        print(printed, end="", flush=True)
        if script:
            stage.product.write_text(printed)
        return printed.strip().rpartition("\n")[2]
    last = newest(stage.product)
    if last:
        words = [*words, f"--ckpt_path={last}"]
    subprocess.run([*program, *words], check=True)
    manifest = next(word.partition("=")[2] for word in words if word.startswith("--data.manifest="))
    subprocess.run(evaluation(Path(manifest), stage.product), check=True)
    return json.dumps(figures(stage.product))


def main(ferplus: Path, fairface: Path, output: Path, seeds: int = 3) -> None:
    """Runs the stages that are not done."""
    book = output / "stages.json"
    notes: dict[str, dict[str, object]] = json.loads(book.read_text()) if book.is_file() else {}
    for stage in stages(ferplus, fairface, output, seeds):
        note = notes.setdefault(stage.name, {"seconds": 0.0, "result": None})
        if stage.done:
            print(f"{stage.name}: {note['result'] or 'done'}")
            continue
        stage.product.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        try:
            note["result"] = run(stage)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{stage.name} failed ({error.returncode}); the same command resumes here.")
        finally:
            note["seconds"] = round(note["seconds"] + time.monotonic() - start)  # type: ignore[operator]
            with atomic_write(book) as new:
                new.write_text(json.dumps(notes, indent=1))


if __name__ == "__main__":
    run_main(main)
