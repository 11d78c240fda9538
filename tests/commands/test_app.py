import socket
import sys

import pytest

from tests.helpers.commands import fails, main


def test_the_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "fer_vit.app.page", raising=False)
    assert 'pip install "fer-vit[app]"' in fails(capsys, "app")


def test_a_port_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Expected port to be from 0 to 65535, but got 70000" in fails(capsys, "app", "--port", 70000)


def test_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gradio")
    assert "No checkpoint at gone.ckpt" in fails(capsys, "app", "--checkpoint", "gone.ckpt")


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str], yunet_named: None) -> None:
    pytest.importorskip("gradio")
    with socket.create_server(("localhost", 0)) as taken:
        line = fails(capsys, "app", "--port", taken.getsockname()[1])
    assert "Address already in use" in line
    assert "Choose another `--host` or `--port`." in line


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_warning_where_others_can_come(
    host: str, warned: bool, capsys: pytest.CaptureFixture[str], yunet_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gradio")
    monkeypatch.setattr("fer_vit.app.page.serve", lambda *_: None)
    main(["app", "--host", host, "--port", "0"])
    out, err = capsys.readouterr()
    assert out.startswith(f"Open http://{host}:")
    assert [line for line in err.splitlines() if "warning: anyone who reaches" in line] == err.splitlines()[:warned]
