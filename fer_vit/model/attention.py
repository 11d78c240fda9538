"""Which attention kernel timm's blocks use."""

from torch import nn


def use_fused_attention(model: nn.Module, fused: bool) -> dict[str, bool]:
    """Switches torch's fused attention on or off in every attention layer of timm.

    On CPUs the fused kernel's backward pass is slow for short sequences, and its weights cannot be seen.

    Returns:
        What each layer, by name, had before.
    """
    before = {name: module.fused_attn for name, module in model.named_modules() if hasattr(module, "fused_attn")}
    for name in before:
        setattr(model.get_submodule(name), "fused_attn", fused)  # noqa: B010 - mypy takes a module's attributes for tensors
    return before
