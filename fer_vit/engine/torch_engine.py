"""Computes a network with PyTorch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fer_vit.engine.protocol import Calibration, RawOutputs
from fer_vit.engine.torch_threads import compute_in_forks, few_threads
from fer_vit.errors import FerVitError
from fer_vit.faces import Crops
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.processes import process_rank
from fer_vit.store.model_folder import hash_weights


class Inputs(NamedTuple):
    """What a network takes for B faces."""

    image: Tensor  # (B, 3, S, S), RGB in [0, 1]
    boxes: Tensor  # (B, R, 4), xyxy in crop pixels; 0 where not `valid`
    valid: Tensor  # (B, R), which regions are present


def to_inputs(crops: Crops, device: str | torch.device) -> Inputs:
    """Moves crops to a device."""
    image = torch.from_numpy(crops.image).permute(0, 3, 1, 2).contiguous()
    return Inputs(
        image=image.to(device).float() / 255,
        boxes=torch.from_numpy(crops.boxes).to(device),
        valid=torch.from_numpy(crops.valid).to(device),
    )


class TorchEngine:
    """A network of torch.

    Raises FerVitError when there is no such device.
    """

    calibration: Calibration | None = None

    def __init__(self, net: RegionViT, device: str) -> None:
        try:
            # On torch's device for shapes, weights would be lost.
            if torch.device(device).type == "meta":
                raise RuntimeError("it computes nothing")
            self.net = net.to(device)
        except (RuntimeError, AssertionError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise FerVitError(
                f"Expected an available device, for example cpu, but got {device} ({reason})."
            ) from error
        self.width: int = net.vit.embed_dim
        self.takes_regions = net.layout.num_regions > 0
        place = next(net.parameters()).device
        self.device = str(place)
        use_fused_attention(net, fused_is_faster(place, net.layout.num_tokens))
        compute_in_forks()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        compute_in_forks()  # `__init__` is not called for a copy from another process

    @property
    def fingerprint(self) -> str:
        """The hash of the weights."""
        return hash_weights(self.net.state_dict())

    @torch.inference_mode()
    def run(self, crops: Crops) -> RawOutputs:
        """Returns the raw outputs for one or more crops."""
        net = self.net.eval()  # with dropout, as in training, predictions would be random
        with few_threads(len(crops)):
            inputs = to_inputs(crops, self.device)
            tokens = net.encode(net.tokenize(*inputs))
            pooled = net.pool(tokens).x  # (B, D), or (B, C, D)
            features = pooled.float().reshape(len(pooled), -1, pooled.shape[-1]).mean(1)  # (B, D)
            heads = {}
            for name, head in net.heads.items():
                heads[name] = head(tokens).float().cpu().numpy()
            return RawOutputs(
                logits=net.score(pooled).float().cpu().numpy(),
                features=features.cpu().numpy(),
                heads=heads,
            )


def best_device() -> str:
    """Returns the name of this process's GPU if there is one, else of the CPU."""
    gpus = torch.cuda.device_count()  # with SLURM, each process may see one GPU alone
    if gpus:
        return f"cuda:{process_rank().local_rank % gpus}"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"
