"""How a run ends when something outside of it fails."""

import errno
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fer_vit.errors import FerVitError
from fer_vit.train import run as module
from fer_vit.train.run import describe_failure, run

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
