"""Trains one small model in many variants on the same data and writes how they compare.

python -m benchmarks.ablation data/ferplus.parquet runs/ablation

A row that is finished is not trained again, one that was interrupted goes on with its last epoch.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "ablation.yaml"
ROWS = {
    "base": [],
    "tokens: patch": ["--model.network.tokens=patch"],
    "tokens: region": ["--model.network.tokens=region"],
    "attention: additive": ["--model.network.attention=additive"],
    "attention: gaussian": ["--model.network.attention=gaussian"],
    "head: avg": ["--model.network.head=avg"],
    "head: additive": ["--model.network.head=additive"],
    "head: query": ["--model.network.head=query"],
    "keep rate: 0.7": ["--model.network.keep_rate=[1,0.7,0.7,0.7]"],
    "keep rate: 0.5": ["--model.network.keep_rate=[1,0.5,0.5,0.5]"],
    "position: none": ["--model.network.pos_embed=none"],
    "position: learned": ["--model.network.pos_embed=learn"],
    "base, seed 1": ["--seed_everything=1"],
    "position: sinusoidal 1-D": ["--model.network.pos_embed=sincos_1d"],
    "block: post-norm": ["--model.network.block=post_norm"],
    "base, seed 2": ["--seed_everything=2"],
    "head dropping: 0.5": ["--model.network.head_drop_rate=0.5"],
}
"""What each row changes. The base: both kinds of tokens, dot-product attention, class token, 2-D positions."""


def train(name: str, manifest: Path, output: Path, jobs: int) -> None:
    """Trains a row and judges its last epoch; the figures come to OUTPUT/ROW/version_N/val.json."""
    folder = output / slug(name)
    if any(folder.rglob("val.json")):
        return
    env = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    common = [f"--data.manifest={manifest}", "--data.num_workers=0", "--trainer.enable_progress_bar=false"]
    common += [f"--trainer.logger.init_args.save_dir={output}", f"--trainer.logger.init_args.name={slug(name)}"]
    fer_vit = [sys.executable, str(ROOT / "cli.py")]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        run = partial(subprocess.run, env=env, stdout=log, stderr=subprocess.STDOUT, check=True)
        last = newest(folder)
        run([*fer_vit, "fit", f"--config={CONFIG}", *ROWS[name], *common, *([f"--ckpt_path={last}"] if last else [])])
        run([*fer_vit, "validate", f"--config={CONFIG}", *common, f"--ckpt_path={newest(folder)}"])
    print(f"{name}: {figures(folder)['accuracy']:.1%}", flush=True)


def newest(folder: Path) -> Path | None:
    """The last epoch's checkpoint of a row's newest run."""
    return max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime, default=None)


def figures(folder: Path) -> dict[str, float]:
    """The figures of the val split."""
    (path,) = folder.rglob("val.json")
    return json.loads(path.read_text())


def slug(name: str) -> str:
    """A row's folder."""
    return name.replace(": ", "-").replace(", ", "-").replace(" ", "_")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, help="FERPlus with soft labels, as `fer-vit prepare` wrote it")
    parser.add_argument("output", type=Path, help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="rows that are trained at once, sharing the cores")
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(partial(train, manifest=args.manifest, output=args.output, jobs=args.jobs), ROWS))


if __name__ == "__main__":
    main()
