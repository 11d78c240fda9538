import csv
import errno
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.data import astronaut

import fer_vit.cli
from fer_vit import cli
from fer_vit.cli import printed_log
from fer_vit.errors import FerVitError
from fer_vit.explain import methods
from fer_vit.face.image import encode_png
from fer_vit.store.checkpoint import load_checkpoint
from tests.helpers.commands import TINY, fails, main, parse
from tests.helpers.marks import slow

ROOT = Path(__file__).parents[1]
IMPORTS = {
    "fer_vit.cli; fer_vit.cli.run_verb(['--version'])": (
        "torch lightning cv2 pyarrow timm albumentations matplotlib"
    ),
    # Workers read while the libraries of the network are imported.
    "fer_vit.commands.predict": "av timm torchvision jsonargparse pydantic",
    "fer_vit.predict.tables": (
        "av lightning torchmetrics albumentations matplotlib scipy tensorboard litdata"
    ),
}
"""What is imported one after the other, and what must not be imported then."""


@pytest.mark.parametrize("number", [1, *slow(len(IMPORTS))])
def test_heavy_modules_are_imported_where_they_are_needed(number: int) -> None:
    code = ["import sys"]
    programs = [*IMPORTS.items()][:number]
    for program, heavy in programs:
        code.append(f"import {program}")
        code.append(f"print('loaded', *{set(heavy.split())} & set(sys.modules))")
    words = [sys.executable, "-c", "\n".join(code)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["loaded"] * number  # the first is the version
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("predikt photos", "Did you mean `predict`?"),
        ("predict clip.mp4 --chekpoint x", "Did you mean `--checkpoint`?"),
        ("predict https://example.com/a.jpg", "https://example.com/a.jpg."),
        ("fit --model.lrr 0.1 --data.manifest x.parquet", "Did you mean `--model.lr`?"),
        ("validate --data.manifest=x.parquet", "`--ckpt_path FILE`"),
        ("predict ", '""'),  # an empty word, which would be the current folder
        ("predict photos --output=", '""'),
        ("export m --checkpoint ferplus-fairface-smal", "Did you mean `ferplus-fairface-small`?"),
    ],
)
def test_a_wrong_word_is_named_with_the_nearest_match(
    words: str, part: str, capsys: pytest.CaptureFixture
) -> None:
    assert part in fails(capsys, *words.split(" "))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict a.jpg --fps 5 b.jpg", "no further input, but got b.jpg. Write all inputs before"),
        (
            "predict --classes happiness a.jpg",
            "for `images`, but got none. Write all inputs",
        ),
        ("predict", "Expected a value for `images`, but got none (`fer-vit predict --help`"),
        ("predict a.jpg --strict=false", "`--strict` is a flag, which takes no value: remove `=f"),
        ("predict a.jpg --stri", "Did you mean `--strict`?"),  # abbreviations are no options
        ("compare t.csv --by track -- --x", "no further input, but got --x. Write all inputs"),
        (
            "compare t.csv --rest -5-0",
            "for `--rest`, but got none. A value that begins",
        ),
    ],
)
def test_words_that_do_not_fit_have_a_remedy(
    words: str, message: str, capsys: pytest.CaptureFixture
) -> None:
    assert message in fails(capsys, *words.split(" "))


def test_the_argument_of_a_class_is_no_misspelled_option(
    capsys: pytest.CaptureFixture,
) -> None:
    words = ["--model.lr", "high", "--trainer.logger.init_args.save_dir", "runs"]
    line = fails(capsys, "fit", "--data.manifest", "x.parquet", *words)
    assert "`--model.lr`" in line
    assert "Did you mean" not in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--output a.csv --output b.csv", True),
        ("--output=a.csv --part_size=5 --part-size 6", True),
        ("--output=a.csv --part_size=5", False),
    ],
)
def test_an_option_that_is_there_twice_is_named(
    words: str, named: bool, capsys: pytest.CaptureFixture
) -> None:
    with printed_log():
        parse("predict", "photos", *words.split())
    assert ("more than once" in capsys.readouterr().out) == named


def test_values_of_an_option_that_is_there_twice_are_not_lost() -> None:
    words = ["--classes=fear", "--classes", "anger", "calm", "--batch-size=4"]
    values = parse("predict", "photos", *words)
    assert values == {"images": ["photos"], "classes": ["fear", "anger", "calm"], "batch_size": "4"}
    values = parse("export", "--checkpoint=a", "--checkpoint", "b", "model")
    assert values == {"output": "model", "checkpoint": ["a", "b"]}


def test_a_closed_output_ends_a_command_silently() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # before the command writes
    command = [sys.executable, "-m", "fer_vit", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (torch.OutOfMemoryError("CUDA out of memory"), 2, "error: "),
    ],
)
def test_ctrl_c_and_a_full_gpu_are_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(fer_vit.cli, "run_verb", Mock(side_effect=error))
    with pytest.raises(SystemExit) as end:
        fer_vit.cli.main(["models"])
    assert end.value.code == code
    assert capsys.readouterr().err.startswith(f"fer-vit: {line}")


@pytest.mark.parametrize(
    ("number", "file", "expected"),
    [
        (errno.ENOSPC, None, f"{os.strerror(errno.ENOSPC)}. Free some space"),
        (errno.EACCES, "a/b", f"{os.strerror(errno.EACCES)} (a/b). Choose files"),
        (errno.EACCES, None, f"{os.strerror(errno.EACCES)}.\n"),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
def test_an_error_of_the_system_is_one_plain_line(
    number: int,
    file: str | None,
    expected: str,
    in_thread: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number), file)

    def run(_: list[str]) -> None:
        if in_thread:
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
        else:
            fail()

    before = threading.excepthook
    monkeypatch.setattr(fer_vit.cli, "run_verb", run)
    with pytest.raises(SystemExit) as end:
        fer_vit.cli.main(["models"])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"fer-vit: error: {expected}")
    assert len(err.splitlines()) == 1
    assert out.startswith(f"error: {expected}") == in_thread
    assert threading.excepthook is before


def test_an_error_in_a_thread_without_a_remedy_does_not_end_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of torch may lose its connection to workers that have ended."""

    def run(_: list[str]) -> None:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()

    def fail() -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    monkeypatch.setattr(fer_vit.cli, "run_verb", run)
    fer_vit.cli.main(["models"])
    assert len(reported) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--config=drawn", "--data.manifest", ""],
        ["fit", "--config=drawn", "--data.manifest="],
        ["crossvalidate", "faces.parquet", "--model.init", ""],
        ["predict", ""],
    ],
)
def test_an_empty_word_is_an_error(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert 'got ""' in fails(capsys, *words)


@pytest.fixture
def data(drawn: Path, tmp_path: Path) -> list[str]:
    """Options of fit, validate and test: the drawn faces, and where to write."""
    return [
        f"--data.manifest={drawn / 'faces.parquet'}",
        f"--trainer.logger.init_args.save_dir={tmp_path}",
    ]


@pytest.mark.parametrize("verb", ["validate", *slow("test")])
def test_the_settings_of_the_checkpoint_are_used_and_metrics_printed(
    verb: str, checkpoint: Path, data: list[str], capsys: pytest.CaptureFixture
) -> None:
    # No option of the network: 32 px and the rest come out of the checkpoint.
    main(
        [
            verb,
            f"--ckpt_path={checkpoint}",
            *data,
            "--data.num_workers=0",
            "--trainer.enable_progress_bar=false",
        ]
    )
    stage = {"validate": "val", "test": "test"}[verb]
    out = capsys.readouterr().out
    assert all(f"{stage}/{name}" in out for name in ("accuracy", "f1", "uar", "ece", "loss"))


def test_the_users_word_wins(
    checkpoint: Path, data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    line = fails(capsys, "test", "--ckpt_path", checkpoint, *data, "--model.network.img_size=64")
    assert "`net.vit.pos_embed` is float (1, 17, 32)" in line
    assert list(tmp_path.iterdir()) == []
    main(
        [
            "fit",
            *TINY,
            *data,
            "--ckpt_path",
            str(checkpoint),
            "--model.lr=0.5",
            "--trainer.max_epochs=2",
        ]
    )
    (resumed,) = tmp_path.rglob("last.ckpt")
    saved = load_checkpoint(resumed)
    assert saved["epoch"] == 1
    assert saved["hyper_parameters"]["lr"] == 0.5
    assert {group["initial_lr"] for group in saved["optimizer_states"][0]["param_groups"]} == {0.5}
    assert set(saved["lr_schedulers"][0]["base_lrs"]) == {0.5}


def test_last_is_the_newest_epoch(data: list[str], tmp_path: Path) -> None:
    # Without a learning rate nothing changes: the first epoch stays the best.
    main(["fit", *TINY, *data, "--model.lr=0", "--trainer.max_epochs=3"])
    folder = tmp_path / "default" / "version_0" / "checkpoints"
    assert [load_checkpoint(folder / name)["epoch"] for name in ("last.ckpt", "best.ckpt")] == [
        2,
        0,
    ]


def test_options_as_people_type_them(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "t.csv"
    odd = tmp_path / os.fsdecode(b"bad\xff.png")
    out.write_text("older")
    words = [
        "--checkpoint",
        str(checkpoint),
        "--output",
        str(out),
        "--face=crop",
        "--detector",
        "none",
    ]
    shutil.copy(min((drawn / "faces" / "val").rglob("*.png")), odd)
    main(
        [
            "predict",
            *words,
            "--batch-size",
            "4",
            "--overwrite",
            str(drawn / "faces" / "val"),
            str(odd),
        ]
    )
    assert r"bad\udcff.png,ok" in out.read_text()
    assert "already exists" in fails(capsys, "predict", *words, drawn)


@pytest.mark.parametrize("verb", ["predict", "prepare"])
def test_an_unknown_detector_is_one_line_with_the_default(
    verb: str, capsys: pytest.CaptureFixture
) -> None:
    words = {"prepare": ["folder", "a", "b.parquet"]}.get(verb, [ROOT / "data" / "sample"])
    line = fails(capsys, verb, *words, "--detector=auto")
    assert "yunet, landmarks, none, but got auto. The default is yunet" in line
    assert len(line.strip().splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_shell_completes_commands_and_options(shell: str, capsys: pytest.CaptureFixture) -> None:
    cli.run_verb(["--completion", shell])
    script = capsys.readouterr().out
    assert "min_confidence" in script
    assert "crossvalidate" in script
    if shell == "bash":
        typed = "COMP_WORDS=(fer-vit predict --det); COMP_CWORD=2; _shtab_fer_vit"
        command = f'{script}\n{typed}; echo "${{COMPREPLY[@]}}"'
        output = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert output.stdout.split() == ["--detector", "--detect_every"]


@pytest.mark.parametrize("words", [[], ["ksh"], ["bash", "zsh"]])
def test_a_shell_without_completion_is_one_line(words: list[str]) -> None:
    with pytest.raises(FerVitError, match="Expected a shell of bash, "):
        cli.run_verb(["--completion", *words])


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("predict x.jpg --face=cropp", "cropp"),
        ("predict x.jpg --batch_size=1.5", "1.5"),
        ("predict x.jpg --fps=fast", "fast"),
        ("evaluate x.csv --split=all", "all"),
        ("fit --model.network.tokens=other", "other"),
        ("test --trainer.precision=7", "7"),
        (
            "fit --data.manifest=none.parquet --data.num_workers=100000",
            "100000",
        ),  # each takes 100 MB
        ("fit --data.manifest=none.parquet --trainer.check_val_every_n_epoch=0", "0"),
        ("fit --data.manifest=none.parquet --trainer.gradient_clip_val=-1", "-1"),
    ],
)
def test_a_wrong_value_of_an_option_is_one_plain_line(
    words: str, value: str, capsys: pytest.CaptureFixture
) -> None:
    line = fails(capsys, *words.split())
    option = words.split()[-1].partition("=")[0]
    assert f"Expected `{option}` to be " in line
    assert f", but got {value}" in line
    assert "\n" not in line
    assert not re.search("Parser key|typing|class '", line)


HOSTILE = "a\x1b[2J\x9b2J\x1b]0;title\x07\u202eb\rc"
"""A name that clears a terminal, changes its title, and reverses and overwrites text."""
COMMANDS_TO_TERMINALS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_names_cannot_command_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    face = encode_png(np.zeros((48, 48, 3), np.uint8))
    for photo in (
        "train/happy/1.png",
        "train/sad/1.png",
        f"{HOSTILE}.png",
    ):  # the last is left out, by name
        (tmp_path / "faces" / photo).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "faces" / photo).write_bytes(face)
    main(["prepare", "folder", f"{tmp_path}/faces", f"{tmp_path}/m.parquet", "--detector=none"])
    printed = capsys.readouterr()
    lines = [printed.out, printed.err]
    assert "a?[2J" in printed.out
    for words in (
        ["predict", tmp_path / HOSTILE],
        ["predict", tmp_path / "faces", "--checkpoint", HOSTILE],
        ["evaluate", tmp_path / "m.parquet", "--checkpoint", tmp_path / f"{HOSTILE}.ckpt"],
        ["fit", "--config", HOSTILE],
        [HOSTILE],
    ):
        lines.append(fails(capsys, *words))
    assert COMMANDS_TO_TERMINALS.findall("".join(lines)) == []


def test_log_and_errors_cannot_command_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def run(_: list[str]) -> None:
        logging.getLogger("fer_vit").warning(f"{HOSTILE}\nsecond  line")
        raise OSError(2, "No such file", HOSTILE)

    monkeypatch.setattr(cli, "run_verb", run)
    with pytest.raises(SystemExit):
        cli.main([])
    printed = capsys.readouterr()
    assert printed.out.endswith("\nsecond  line\n")
    assert COMMANDS_TO_TERMINALS.findall(printed.out + printed.err) == []


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str, tmp_path: Path) -> None:
    Image.fromarray(astronaut()).save(tmp_path / "a.jpg")
    for words in ("predict a.jpg --output faces.csv", "models", "predict gone.jpg"):
        command = f"exec {sys.executable} -m fer_vit {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr
        assert done.returncode == (2 if "gone" in words else 0)
    (row,) = csv.DictReader((tmp_path / "faces.csv").open())
    assert row["label"] == "happiness"


@pytest.mark.parametrize("limit", [20, 63])
def test_a_low_limit_of_open_files_is_one_line(limit: int) -> None:
    command = f"ulimit -n {limit} && exec {sys.executable} -m fer_vit predict nothing"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"the limit is {limit}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_python_without_docstrings_is_refused_in_one_line() -> None:
    words = [sys.executable, "-OO", "-m", "fer_vit", "models"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "-OO" in done.stderr
    assert done.stderr.count("\n") == 1


def test_texts_of_methods_are_no_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have the text of each method without docstrings, too,
    as `python -OO` leaves the module.
    """
    module = ModuleType("methods_without_docstrings")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = Path(methods.__file__).read_text(encoding="utf-8")
    exec(compile(source, methods.__file__, "exec", optimize=2), vars(module))
    assert module.find_method.__doc__ is None
    assert {name: method.text for name, method in module.METHODS.items()} == {
        name: method.text for name, method in methods.METHODS.items()
    }
    assert all(method.text for method in methods.METHODS.values())
