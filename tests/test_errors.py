"""Errors are one line that no name in it can change."""

import logging
from argparse import ArgumentError
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from jsonargparse import ArgumentParser

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
from fer_vit.train.option_errors import describe_option
from tests.helpers.commands import fails


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\rb", "a\x9bb", "a\u202eb", "a\ud800b", "a\nb"])
def test_a_message_is_one_line_without_control_characters(text: str) -> None:
    message = str(FerVitError(f"Expected a file, but got {text}."))
    assert message == f"Expected a file, but got {printable(text)}."
    assert message.isprintable()


def test_a_long_value_is_cut() -> None:
    assert len(short("x" * 1000)) == 80


@pytest.mark.parametrize(
    ("kind", "word", "expected"),
    [
        (float, "half", "a number"),
        (float | None, "nan", "a number"),
        (int | None, "1.5", "a whole number"),
        (Literal["detect", "crop"], "cut", "one of detect, crop"),
        (dict[str, str | None] | None, "a", "names with values"),
        (Literal[64, 32] | Literal["16-true", "64"] | None, "foo", "one of 64, 32, 16-true,"),
        (bool | Literal["x"] | list[int], "foo", "one of x or true or false or a list"),
        (int | float | None, "foo", "a number"),
        (list[int] | dict[str, int], "foo", "a list or names with values"),
    ],
)
def test_an_option_of_another_type_is_one_plain_line(kind: Any, word: str, expected: str) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model.part", type=kind)
    with pytest.raises(ArgumentError) as error:
        parser.parse_args([f"--model.part={word}"])
    text = describe_option(str(error.value))
    assert text.startswith(f"Expected `--model.part` to be {expected}")
    assert text.endswith(f"but got {word}")
    assert describe_option("unrecognized arguments: --x") == "unrecognized arguments: --x"


def test_a_value_of_a_group_of_options_is_one_plain_line() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(RegionViTConfig, "part.box")
    with pytest.raises(ArgumentError) as error:
        parser.parse_args(["--part.box", "x.parquet"])
    text = describe_option(str(error.value))
    assert text.startswith("Expected `--part.box` to be a YAML file")
    assert "x.parquet" in text
    assert "--part.box.NAME" in text
    assert "\n" not in text


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
