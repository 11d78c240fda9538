"""Compares a training step of RegionViT in Lightning with a timm ViT in a plain loop.

python -m benchmarks.training

The timm ViT has the same width, depth and number of tokens (register tokens replace the regions).
Both run in bfloat16, on the GPU if there is one; `--compiled=true` compiles both. Utilisation is
relative to large matrix products.
"""

import logging
import time
import warnings
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import timm
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.machine import in_turns, machine, ratios, run_main, spread
from fer_vit.data.dataset import Batch
from fer_vit.face.crop import DEFAULT_REGIONS, region_boxes
from fer_vit.geometry import TEMPLATE
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.train.run import multiply_adds
from fer_vit.train.task import FERTask

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARM_UP, STEPS = 3, 12
CUDA = DEVICE.type == "cuda"
TINY, SMALL, BASE = (
    partial(RegionViTConfig, f"vit_{name}_patch16_224") for name in ("tiny", "small", "base")
)
SMALL_CROPS = TINY(img_size=48, patch_size=8, depth=6, region_grid=1, regions=DEFAULT_REGIONS)
SIZES = {
    "48 px, patch 8, width 192, 6 blocks": (SMALL_CROPS, 1024 if CUDA else 64),
    "ViT-Ti/16, 224 px": (TINY(regions=DEFAULT_REGIONS), 256 if CUDA else 16),
}
if CUDA:
    SIZES["ViT-S/16, 224 px"] = (SMALL(regions=DEFAULT_REGIONS), 256)
    SIZES["ViT-B/16, 224 px"] = (BASE(regions=DEFAULT_REGIONS), 128)


def faces(config: RegionViTConfig, number: int) -> Batch:
    """Returns a batch of noise with the regions of the template."""
    boxes = torch.from_numpy(
        region_boxes(torch.tensor(TEMPLATE).numpy() * config.img_size, config.regions)
    ).float()
    return Batch(
        image=torch.rand(number, 3, config.img_size, config.img_size, device=DEVICE),
        boxes=boxes.expand(number, -1, -1).contiguous().to(DEVICE),
        valid=torch.ones(number, len(config.regions), dtype=torch.bool, device=DEVICE),
        target=torch.rand(number, len(EXPRESSIONS), device=DEVICE).softmax(-1),
        row=torch.arange(number),
        path=[""] * number,
        to_crop=torch.zeros(number, 2, 3),
        targets={},
    )


def now() -> float:
    """Returns the time in seconds at which the GPU has finished."""
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter()


def lightning_step(config: RegionViTConfig, batch: Batch, compiled: bool) -> float:
    """Returns the seconds of a step of FERTask in Lightning's Trainer, as in `fer-vit fit`."""
    times: list[float] = []
    clock = LambdaCallback(on_train_batch_start=lambda *_: times.append(now()))
    with TemporaryDirectory() as folder:
        off = dict.fromkeys(
            ("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        how: dict[str, Any] = {
            "precision": "bf16-mixed",
            "accelerator": DEVICE.type,
            "devices": 1,
            **off,
        }
        log = TensorBoardLogger(folder)
        trainer = L.Trainer(
            max_steps=WARM_UP + STEPS + 1,
            gradient_clip_val=1.0,
            logger=log,
            callbacks=[clock],
            **how,
        )
        task = FERTask(config, labels=list(EXPRESSIONS), compile=compiled)
        trainer.fit(task, DataLoader([batch] * (WARM_UP + STEPS + 1), batch_size=None))  # type: ignore[arg-type]
    return (times[-1] - times[WARM_UP]) / STEPS


def bare_vit(config: RegionViTConfig) -> torch.nn.Module:
    """Returns a timm ViT with as many tokens."""
    options = {
        name: getattr(config, name) for name in ("patch_size", "depth") if getattr(config, name)
    }
    extra = len(config.regions) * config.region_grid**2
    return timm.create_model(
        config.backbone,
        img_size=config.img_size,
        num_classes=len(EXPRESSIONS),
        reg_tokens=extra,
        **options,
    ).to(DEVICE)


def plain_step(net: torch.nn.Module, image: Tensor, target: Tensor) -> float:
    """Returns the seconds of a step in a minimal training loop."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            start = now()
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = F.cross_entropy(net(image), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return (now() - start) / STEPS


def against_a_bare_vit(
    config: RegionViTConfig, number: int, rounds: int, compiled: bool
) -> dict[str, list[float]]:
    """Returns the seconds of a step by name and round."""
    batch = faces(config, number)
    names = {"bare ViT, fused attention": True, "bare ViT, explicit attention": False}
    seconds: dict[str, list[float]] = {name: [] for name in ("RegionViT", *names)}
    for _ in range(rounds):
        seconds["RegionViT"].append(lightning_step(config, batch, compiled))
        for name, fused in names.items():
            net = bare_vit(config)
            use_fused_attention(net, fused)
            if compiled:
                net = torch.compile(net)
            seconds[name].append(plain_step(net, batch.image, batch.target))
    return seconds


def peak(side: int = 8192 if CUDA else 2048) -> float:
    """Returns the measured multiply-adds per second of large bfloat16 matrix products."""
    a = torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16)
    (times,) = in_turns({"product": lambda: a @ a}, 5, 1.0).values()
    return side**3 / min(times)


def main(rounds: int = 5, compiled: bool = False) -> None:
    """Runs the measurements."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    best = peak()
    print(machine())
    print(f"matrix products in bfloat16: {best / 1e9:,.0f} billion multiply-adds a second")
    for name, (config, number) in SIZES.items():
        seconds = against_a_bare_vit(config, number, rounds, compiled)
        print(f"\n{name}, batch {number}\n")
        print("| | seconds a step | RegionViT takes |")
        print("| --- | ---: | ---: |")
        ours = seconds["RegionViT"]
        for network, times in seconds.items():
            relative = ratios({"RegionViT": ours, network: times}, network)["RegionViT"]
            print(f"| {network} | {spread(times, 3)} | {spread(relative)} |", flush=True)

        # A step is a forward pass and two times its work backward.
        work = 3 * number * multiply_adds(build_model(config, EXPRESSIONS))
        utilisation = [100 * work / duration / best for duration in ours]  # percent
        print(f"\nmodel FLOPs utilisation of RegionViT: {spread(utilisation, 0)}%")


if __name__ == "__main__":
    run_main(main)
