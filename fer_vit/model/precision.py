"""What a machine computes in."""

import torch

BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""CPU features for bfloat16 products, by torch's names: two of x86, one of ARM."""


def has_bf16(accelerator: str) -> bool:
    """Tells whether the GPU, if there is one to use, or else the CPU has bfloat16 instructions."""
    if torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities()
    return torch.backends.mkldnn.is_available() and any(has.get(name) for name in BF16)  # type: ignore[no-untyped-call]
