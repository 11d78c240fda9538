"""Trains variants of one small model on the same data and compares them in OUTPUT/table.md.

python -m benchmarks.ablation data/ferplus.parquet runs/ablation

Finished rows are not trained again; interrupted rows resume from their last epoch. Training steps are timed afterwards
in several rounds without data loading: run nothing else meanwhile.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks import machine
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.folder import load_network
from fer_vit.train.cost import has_bf16, multiply_adds

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "ablation.yaml"
FER_VIT = [sys.executable, str(ROOT / "cli.py")]
ROWS = {
    "base, seed 0": [],
    "base, seed 1": ["--seed_everything=1"],
    "base, seed 2": ["--seed_everything=2"],
    "tokens: patch": ["--model.network.tokens=patch"],
    "tokens: region": ["--model.network.tokens=region"],
    "attention: additive": ["--model.network.attention=additive"],
    "attention: gaussian": ["--model.network.attention=gaussian"],
    "pool: avg": ["--model.network.pool=avg"],
    "pool: additive": ["--model.network.pool=additive"],
    "pool: query": ["--model.network.pool=query"],
    "keep rate: 0.7": ["--model.network.keep_rate=[1,0.7,0.7,0.7]"],
    "keep rate: 0.5": ["--model.network.keep_rate=[1,0.5,0.5,0.5]"],
    "position: none": ["--model.network.pos_embed=none"],
    "position: learned": ["--model.network.pos_embed=learn"],
    "position: sinusoidal 1-D": ["--model.network.pos_embed=sincos_1d"],
}
"""What each row changes. The base: both kinds of tokens, dot-product attention, class token, 2-D positions."""


def train(name: str, words: list[str], manifest: Path, output: Path, jobs: int) -> bool:
    """Trains a row and evaluates its last epoch. Returns False if the row failed."""
    folder = output / slug(name)
    if results_file(folder).exists():
        return True
    env = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    common = [f"--data.manifest={manifest}", "--data.num_workers=0", "--trainer.enable_progress_bar=false"]
    common += [f"--trainer.logger.init_args.save_dir={output}", f"--trainer.logger.init_args.name={slug(name)}"]
    row = [f"--config={CONFIG}", *common, *words]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        run = partial(subprocess.run, env=env, stdout=log, stderr=subprocess.STDOUT, check=True)
        last = newest(folder)
        more = [f"--ckpt_path={last}"] if last else []
        try:
            run([*FER_VIT, "fit", *row, *more])
            run(evaluation(manifest, folder))
        except subprocess.CalledProcessError:
            print(f"{name}: failed, see {log.name}", flush=True)
            return False
    print(f"{name}: {figures(folder)['accuracy']:.1%}", flush=True)
    return True


def train_all(rows: dict[str, list[str]], manifest: Path, output: Path, jobs: int) -> bool:
    """Trains rows, `jobs` at a time. Returns False if one failed."""
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(partial(train, manifest=manifest, output=output, jobs=jobs), rows, rows.values())
        return all(list(done))


def newest(folder: Path) -> Path | None:
    """Returns the newest checkpoint of a last epoch in a folder."""
    return max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime, default=None)


def evaluation(manifest: Path, folder: Path) -> list[str]:
    """Returns the command that evaluates the last epoch in a folder on the validation images."""
    where = ["--checkpoint", str(newest(folder)), "--output", str(results_file(folder).parent)]
    return [*FER_VIT, "evaluate", str(manifest), *where]


def results_file(folder: Path) -> Path:
    """Returns where `evaluation` writes its results."""
    return folder / "evaluation" / "results.json"


def figures(folder: Path) -> dict[str, float]:
    """Returns accuracy and UAR of the last epoch in a folder."""
    found = json.loads(results_file(folder).read_text())["all"]
    return {name: found[name]["mean"] for name in ("accuracy", "UAR")}


def slug(name: str) -> str:
    """Returns the name of a row's folder."""
    return name.replace(": ", "-").replace(", ", "-").replace(" ", "_")


def table(output: Path, rounds: int) -> str:
    """Returns the finished rows as Markdown."""
    rows = [name for name in ROWS if results_file(output / slug(name)).exists()]
    nets = {name: load_network(newest(output / slug(name))) for name in rows}
    seconds = step_seconds(nets, rounds)
    lines = ["| row | parameters | multiply-adds | step | accuracy | UAR |", "| --- | --- | --- | --- | --- | --- |"]
    for name, net in nets.items():
        found = figures(output / slug(name))
        parameters = sum(parameter.numel() for parameter in net.parameters())
        low, middle, high = min(seconds[name]), median(seconds[name]), max(seconds[name])
        lines.append(
            f"| {name} | {parameters / 1e6:.2f} M | {sum(multiply_adds(net).values()) / 1e6:.1f} M "
            f"| {middle:.3f} s ({low:.3f}-{high:.3f}) | {100 * found['accuracy']:.1f} % | {100 * found['UAR']:.1f} % |"
        )
    return "\n".join(lines) + "\n"


def step_seconds(nets: dict[str, RegionViT], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds per training step of 128 faces by model and round."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = {name: training_step(net.to(device).train(), 128, device) for name, net in nets.items()}
    return machine.in_turns(steps, rounds)


def training_step(net: RegionViT, batch: int, device: torch.device) -> "partial[None]":
    """Returns a training step as in `fit`: bfloat16 if supported, AdamW, clipped gradients."""
    use_fused_attention(net, fused=device.type != "cpu")
    size = net.config.img_size
    image = torch.rand(batch, 3, size, size, device=device)
    corner = torch.rand(batch, len(net.config.regions), 2, device=device) * size / 2
    boxes = torch.cat([corner, corner + size / 3], dim=-1)
    return partial(_step, net, torch.optim.AdamW(net.parameters()), image, boxes)


def _step(net: RegionViT, optimiser: torch.optim.Optimizer, image: Tensor, boxes: Tensor) -> None:
    with torch.autocast(image.device.type, torch.bfloat16, enabled=has_bf16("auto")):
        loss = net(image, boxes).float().logsumexp(-1).mean()
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimiser.step()


def arguments(description: str) -> ArgumentParser:
    """Returns the options that benchmarks/ablation.py and regions.py share."""
    parser = machine.arguments(description)
    parser.add_argument("manifest", type=Path, help="FERPlus with soft labels, as `fer-vit prepare` wrote it")
    parser.add_argument("output", type=Path, help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="rows trained at a time; they share the cores")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds per row")
    return parser


def main() -> None:
    """Trains the missing rows and prints the table; exits with 1 if a row failed."""
    args = arguments(__doc__).parse_args()
    done = train_all(ROWS, args.manifest, args.output, args.jobs)
    (args.output / "table.md").write_text(table(args.output, args.rounds))
    print((args.output / "table.md").read_text())
    sys.exit(not done)


if __name__ == "__main__":
    main()
