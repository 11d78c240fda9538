"""How a run ends when something outside of it fails, what a face costs, and bfloat16."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from fer_vit.errors import FerVitError
from fer_vit.model.attention import has_bf16
from fer_vit.train.run import describe_network, multiply_adds, run_trainer, with_prefix
from tests.helpers.models import small_model


def test_a_run_that_fails_leaves_no_process_behind() -> None:
    def fail(model: object) -> None:
        raise KeyboardInterrupt

    killed: list[int] = []
    launcher = SimpleNamespace(procs=[SimpleNamespace(kill=lambda: killed.append(1))])
    with pytest.raises(KeyboardInterrupt):
        run_trainer(
            "test", SimpleNamespace(test=fail, strategy=SimpleNamespace(launcher=launcher)), None
        )
    assert killed == [1]
    assert launcher.procs == []


@pytest.mark.parametrize(
    "error",
    [
        dist.DistBackendError("NCCL communicator was aborted"),
        RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"),
    ],
)
def test_a_lost_process_is_one_line_with_the_command_that_resumes(
    error: Exception, tmp_path: Path
) -> None:
    def fail(model: object) -> None:
        raise error

    last = tmp_path / "last.ckpt"
    last.touch()
    trainer = SimpleNamespace(
        fit=fail,
        strategy=SimpleNamespace(launcher=None),
        checkpoint_callbacks=[SimpleNamespace(dirpath=str(tmp_path))],
    )
    model = SimpleNamespace(net=small_model("abcde", **SMALL))
    with pytest.raises(FerVitError, match=re.escape(f"ckpt_path='{last}'")):
        run_trainer("fit", trainer, model)


SMALL = {"regions": ("nose", "mouth"), "region_grid": 2, "depth": 3}
D = 32  # width of `small_model`
N = 16  # its patches
R = 2 * 4  # its region tokens
PATCH = 3 * 8 * 8 * D  # embeds one token


def block(tokens: int) -> int:
    """Multiply-adds of a ViT block by hand: qkv 3, projection 1, feed-forward 8 times D^2;
    scores and sums T^2 D.
    """
    return 12 * tokens * D * D + 2 * tokens * tokens * D


def ranking(tokens: int) -> int:
    """Multiply-adds by which hard attention ranks patches: a query,
    and every token's key and score.
    """
    return D * D + tokens * D * D + tokens * D


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (N + R) * PATCH + 3 * block(1 + N + R)),
        ({"tokens": "patch"}, N * PATCH + 3 * block(1 + N)),
        ({"tokens": "region"}, R * PATCH + 3 * block(1 + R)),
        ({"attention": "additive"}, (N + R) * PATCH + 3 * block(1 + N + R)),
        ({"pool": "additive"}, (N + R) * PATCH + 3 * block(1 + N + R) + 25 * (D * D + D)),
        (
            {"keep_rate": (1.0, 0.5, 0.5)},
            (N + R) * PATCH + sum(map(block, (25, 17, 13))) + ranking(25) + ranking(17),
        ),
    ],
)
def test_multiply_adds_of_a_face_by_the_formula(change: dict[str, object], expected: int) -> None:
    net = small_model("abcde", **SMALL, **change)
    assert multiply_adds(net.train()) == expected + 5 * D
    assert all(block.attn.fused_attn for block in net.vit.blocks)
    assert net.training
    assert describe_network(net).endswith(f"{with_prefix(expected + 5 * D)} multiply-adds a face")


@pytest.mark.parametrize(
    ("capabilities", "gpu", "has"),
    [
        (
            {"avx512_f": True, "avx512_bf16": False, "amx_bf16": False},
            None,
            (False, False),
        ),  # would be emulated
        ({"avx512_bf16": False, "amx_tile": True, "amx_bf16": True}, None, (True, True)),
        ({"neon": True, "bf16": True}, False, (False, True)),
        ({}, True, (True, False)),
    ],
)
def test_bf16_is_used_where_the_hardware_has_instructions(
    capabilities: dict[str, bool],
    gpu: bool | None,
    has: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: gpu or including_emulation
    )
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert (has_bf16("auto"), has_bf16("cpu")) == has


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (999, "999"),
        (1000, "1 k"),
        (530_000, "530 k"),
        (999_600, "1 M"),
        (28_100_000, "28.1 M"),
        (5_410_000_000, "5.41 G"),
        (17_600_000_000, "17.6 G"),
    ],
)
def test_large_numbers_have_a_prefix(number: int, text: str) -> None:
    assert with_prefix(number) == text
