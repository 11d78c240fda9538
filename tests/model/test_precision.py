import pytest
import torch

from fer_vit.model.precision import has_bf16


@pytest.mark.parametrize(
    ("capabilities", "has"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, False),  # bfloat16 would be emulated
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_tile": True, "amx_bf16": True}, True),
        ({"avx2": True}, False),
        ({"neon": True, "bf16": True}, True),
        ({"neon": True, "bf16": False}, False),
    ],
)
def test_a_cpu_computes_in_bf16_by_its_own_instructions(
    capabilities: dict[str, bool], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert [has_bf16(accelerator) for accelerator in ("auto", "cpu")] == [has, has]
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not has_bf16("auto")


@pytest.mark.parametrize("native", [True, False])
def test_a_gpu_computes_in_bf16_unless_the_cpu_is_wanted(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": not native})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert [has_bf16(name) for name in ("auto", "gpu", "cuda", "cpu")] == [native, native, native, not native]
