"""The wording of errors: calls of each command with wrong words, and their lines in `messages.txt`.

Other tests compare types, file names and numbers.
"""

from pathlib import Path

import pytest

from fer_vit.cli import VERBS
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.face.image import encode_png
from fer_vit.sources.cartoon import draw_face
from fer_vit.sources.drawn import read
from tests.helpers.commands import fails

FILE = Path(__file__).with_name("messages.txt")
CANNOT_FAIL = {"configs", "models", "test"}
"""Commands without words that can be wrong, and `test`, which shares the messages of `validate`."""


def golden() -> dict[str, str]:
    """The message by the words of a call: pairs of lines, with an empty line after each."""
    messages = {}
    for pair in FILE.read_text(encoding="utf-8").strip().split("\n\n"):
        words, message = pair.split("\n")
        messages[words] = message
    return messages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the calls name."""
    path = tmp_path_factory.mktemp("messages")
    photo = encode_png(draw_face("happiness", 0, 48)[0])
    for place in ("faces", "few"):
        for label in ("calm", "happy"):
            (path / place / label).mkdir(parents=True)
            (path / place / label / "1.png").write_bytes(photo)

    write_manifest(path / "faces.parquet", read(path / "drawn", count=24, size=32), "drawn")
    rows = [Row(photo, f"{split}.png", split, "fear") for split in ("train", "val")]
    write_manifest(path / "one_class.parquet", Reading(("fear",), rows), "drawn")

    (path / "there.parquet").touch()
    (path / "there.csv").touch()
    (path / "-dash.png").touch()
    (path / "damaged.zip").write_bytes(b"PK\x03\x04 and nothing more")
    table = "path,status,face,label,confidence,p_anger,p_fear\na.png,ok,0,fear,0.75,0.25,0.75\n"
    (path / "predictions.csv").write_text(table)
    return path


@pytest.mark.parametrize(("words", "message"), golden().items(), ids=golden())
def test_message(
    words: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(folder)
    assert fails(capsys, *words.split()) == f"fer-vit: error: {message}"


def test_each_command_has_a_message() -> None:
    assert {words.split()[0] for words in golden()} >= {*VERBS} - CANNOT_FAIL
