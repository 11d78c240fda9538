"""How a run ends when something outside of it fails, what a face costs, and bfloat16."""

import errno
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fer_vit.errors import FerVitError
from fer_vit.train import run as module
from fer_vit.train.run import describe, describe_failure, has_bf16, multiply_adds, run
from tests.helpers.models import small_model

LOST = "Another process of this run died or no longer answers; its output may show why. "


@pytest.mark.parametrize(
    ("error", "initialized", "last", "line"),
    [
        (OSError(errno.ENOSPC, "Full"), False, None, "Cannot write the logs (Full). Start again when "),
        (OSError(errno.ENOSPC, "Full"), True, "a", "Cannot write the logs (Full). Resume with `--ckpt_path a` when"),
        (ValueError("x"), True, "a", None),
        (torch.distributed.DistError("x"), True, "a", f"{LOST}Resume with the same options and `--ckpt_path a`."),
        (RuntimeError("[gloo/transport/tcp] x"), True, None, f"{LOST}Start again: no checkpoint exists yet."),
        (RuntimeError("[gloo/transport/tcp] x"), False, "a", None),
    ],
)
def test_messages_for_failures_from_outside(
    error: Exception, initialized: bool, last: str | None, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: initialized)
    handlers = []
    monkeypatch.setattr(signal, "signal", lambda *args: handlers.append(args))
    message = describe_failure(error, last and Path(last))
    assert message == line if line is None else message.startswith(line)
    # torchrun ends the others by SIGTERM, also the process that has yet to print why
    assert handlers == ([(signal.SIGTERM, signal.SIG_IGN)] if line and line.startswith(LOST) else [])


def failing(error: BaseException, folder: Path) -> SimpleNamespace:
    """A Trainer that fails, with a process that it started and a checkpoint."""

    def fail(model: object, **options: object) -> None:
        raise error

    killed: list[int] = []
    processes = [SimpleNamespace(kill=lambda: killed.append(1))]
    (folder / "last.ckpt").touch()
    return SimpleNamespace(
        fit=fail,
        test=fail,
        strategy=SimpleNamespace(launcher=SimpleNamespace(procs=processes)),
        checkpoint_callbacks=[SimpleNamespace(dirpath=None), SimpleNamespace(dirpath=str(folder))],
        killed=killed,
    )


def test_a_run_that_fails_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "describe", lambda net: "small")
    trainer = failing(KeyboardInterrupt(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run("fit", trainer, SimpleNamespace(net=None))
    assert trainer.killed == [1]
    assert trainer.strategy.launcher.procs == []
    with pytest.raises(FerVitError, match="when there is room"):
        run("test", failing(OSError(errno.ENOSPC, "Full"), tmp_path), None)


@pytest.mark.parametrize("ended", [True, False])
def test_a_process_that_does_not_end_by_itself_is_killed(
    ended: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[object] = []
    signals = {"send_signal": lambda number: sent.append(("other", number))}
    other = SimpleNamespace(pid=2, returncode=-9, poll=lambda: None, **signals)
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    others = [other]
    monkeypatch.setattr(module.time, "sleep", lambda seconds: others.clear() if ended and seconds > 10 else None)
    module.PatientObserver(main_pid=1, child_processes=others).run()
    assert sent == ([] if ended else [("other", signal.SIGKILL), (1, signal.SIGKILL)])
    assert (LOST in capsys.readouterr().err) == (not ended)


SMALL = {"regions": ("nose", "mouth"), "region_grid": 2, "depth": 3}
D, N, R = 32, 16, 2 * 4  # width, patches and region tokens of `small_model`
PATCH = 3 * 8 * 8 * D  # embeds one token


def block(tokens: int) -> int:
    """Multiply-adds of a ViT block by hand: qkv 3, projection 1, feed-forward 8 times D^2; scores and sums T^2 D."""
    return 12 * tokens * D * D + 2 * tokens * tokens * D


def ranking(tokens: int) -> int:
    """Multiply-adds by which hard attention ranks patches: a query, and every token's key and score."""
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
            (N + R) * PATCH + block(25) + block(17) + block(13) + ranking(25) + ranking(17),
        ),
    ],
)
def test_multiply_adds_of_a_face_by_the_formula(change: dict[str, object], expected: int) -> None:
    net = small_model("abcde", **SMALL, **change)
    assert multiply_adds(net.train()) == expected + 5 * D
    assert all(block.attn.fused_attn for block in net.vit.blocks)
    assert net.training
    assert describe(net).endswith(f"{(expected + 5 * D) / 1e6:.3g} M multiply-adds a face")


@pytest.mark.parametrize(
    ("capabilities", "has"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, False),  # bfloat16 would be emulated
        ({"avx512_bf16": False, "amx_tile": True, "amx_bf16": True}, True),
        ({"neon": True, "bf16": True}, True),
    ],
)
def test_a_cpu_computes_in_bf16_by_its_instructions(
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
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": not native})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert [has_bf16(name) for name in ("auto", "gpu", "cuda", "cpu")] == [native, native, native, not native]
