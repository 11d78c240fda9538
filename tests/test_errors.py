"""Errors are one line that no name in it can change."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import fer_vit
from fer_vit.errors import (
    FerVitError,
    command_line,
    for_reader,
    known_names,
    printable,
    short,
)
from fer_vit.model.config import RegionViTConfig
from fer_vit.train.fit import fit
from tests.helpers.commands import fails


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\rb", "a\x9bb", "a\u202eb", "a\ud800b", "a\nb"])
def test_a_message_is_one_line_without_control_characters(text: str) -> None:
    message = str(FerVitError(f"Expected a file, but got {text}."))
    assert message == f"Expected a file, but got {printable(text)}."
    assert message.isprintable()


def test_a_long_value_is_cut() -> None:
    assert len(short("x" * 1000)) == 80


@pytest.mark.parametrize(
    ("option", "word", "expected"),
    [
        ("--model.lr", "half", "a number"),
        ("--trainer.max_epochs", "1.5", "a whole number"),
        ("--model.freeze", "head", "one of none, stem, encoder"),
        ("--trainer.precision", "foo", "one of .*16-true"),
        ("--model.head_weights", "a", "names with values"),
        ("--model.teachers", "{a: 1}", "a list"),
        ("--model.network", "x.parquet", "a YAML file.*--model.network.NAME"),
    ],
)
def test_an_option_of_another_type_is_one_plain_line(
    option: str, word: str, expected: str, capsys: pytest.CaptureFixture
) -> None:
    line = fails(capsys, "fit", "--data.manifest=x.parquet", f"{option}={word}")
    assert re.search(f"Expected `{option}` to be {expected}", line)
    assert re.search(r"but got \S+", line)


@pytest.mark.parametrize(
    ("call", "argument", "words", "option"),
    [
        (
            lambda manifest: fer_vit.FaceDataModule(manifest, batch_size=0),
            "`batch_size`",
            ["fit", "--data.batch_size=0", "--data.manifest"],
            "`--data.batch_size`",
        ),
        (
            lambda _: fer_vit.build_model(RegionViTConfig(embed_dim=30), ["a", "b"]),
            "`embed_dim`",
            ["fit", "--model.network.embed_dim=30", "--data.manifest"],
            "`--model.network.embed_dim`",
        ),
        (
            lambda manifest: fer_vit.crossvalidate(manifest, folds=1),
            "`folds`",
            ["crossvalidate", "--folds=1"],
            "`--folds`",
        ),
        (
            lambda manifest: fer_vit.evaluate(manifest, classes=["anger"], merge={"anger": "bad"}),
            "`classes` and `merge`",
            ["evaluate", "--classes=anger", "--merge={anger: bad}"],
            "`--classes` and `--merge`",
        ),
    ],
)
def test_an_error_names_the_argument_in_python_and_the_option_in_a_command(
    call: Callable[[Path], object],
    argument: str,
    words: list[str],
    option: str,
    drawn: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    manifest = drawn / "faces.parquet"
    with pytest.raises(FerVitError) as error:
        call(manifest)
    assert argument in str(error.value)
    assert "--" not in str(error.value)
    assert option in fails(capsys, *words, manifest)


def test_fit_names_settings_as_it_takes_them(drawn: Path) -> None:
    settings = {"data.manifest": drawn / "faces.parquet", "model.region_dropout": 2}
    with pytest.raises(FerVitError, match=r"`model\.region_dropout`"):
        fit("drawn", **settings)


def test_the_log_names_arguments_in_python_and_options_in_a_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        logging.getLogger("fer_vit").warning("%s: add `--face crop`.", "a.png")
        with command_line():
            logging.getLogger("fer_vit").warning("%s: add `--face crop`.", "a.png")
            assert for_reader("`--a.b 1`") == "`--a.b 1`"
    in_python = "a.png: add `face='crop'`."
    in_command = "a.png: add `--face crop`."
    assert caplog.messages == [in_python, in_command] * 2


def test_of_many_names_an_error_has_the_nearest() -> None:
    few = ["age", "gender"]
    assert known_names("gendr", few) == "age, gender"
    many = [f"move_{number}" for number in range(70)] + few
    text = known_names("gendr", many)
    assert "gender" in text.split(", ")[0]
    assert text.endswith(" others")
    assert len(text) < 100
    assert known_names("€", many).startswith("move_0, ")
