import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import import_module
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from skimage import data, io

from fer_vit import cli
from fer_vit.face.image import encode_png
from fer_vit.sources.cartoon import draw_face
from fer_vit.train import fit as train_fit, recipe
from tests.helpers.commands import main, parse
from tests.helpers.pages import DOCS, NOTEBOOK, PAGES, ROOT, prose
from tests.helpers.videos import write_video


def commands(page: Path) -> list[list[str]]:
    """The words of the `fer-vit` commands on a page, in blocks and in prose.

    Not of commands with SOME placeholder, or with a class of the user's module `my_module`.
    """
    return commands_of(prose(page))


def commands_of(text: str) -> list[list[str]]:
    """The words of the `fer-vit` commands in a text."""
    text = text.replace("\\\n", " ")
    matches = re.findall(
        r"^(?: {4}.*)?\bfer-vit (\w+ .+)$|`fer-vit (fit [^`]+|\w+ (?!-)[^`]+)`", text, re.M
    )
    lines = [
        shlex.split((block or inline).partition(" > ")[0], comments=True)
        for block, inline in matches
    ]
    return [
        words
        for words in lines
        if words[0] in cli.VERBS
        and not any(word.isupper() or word.startswith("my_module.") for word in words)
    ]


understood = cache(parse)
"""Parses a command once that several pages have."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_documentation_are_understood(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verbs, options and their values: the parsers read every command as if it were given."""
    monkeypatch.chdir(ROOT)
    for verb, *words in commands(page):
        understood(verb, *(word for word in words if not word.startswith("$")))
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    named = re.findall(r"(?:^    |`)make ([\w-]+(?: [a-z-]+)*)", prose(page), re.M)
    assert {target for targets in named for target in targets.split()} <= set(targets)


def output_of(verb: str, words: list[str]) -> str | None:
    """What a command writes, which must not exist before; None: nothing, or it is resumed."""
    if "--output" in words:
        output = words[words.index("--output") + 1]
    elif verb == "export":
        output = words[0]
    elif verb in ("predict", "visualize", "evaluate", "compare", "crossvalidate", "faithfulness"):
        command = getattr(import_module(f"fer_vit.commands.{verb}"), verb)
        output = str(signature(command).parameters["output"].default)
    else:
        return None
    return None if Path(output).is_absolute() else output


HOW_TO = sorted([*DOCS.glob("how-to/*.md"), *DOCS.glob("tutorials/*.md")])


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.name)
def test_commands_of_a_block_run_one_after_the_other(page: Path) -> None:
    """None finds the output of the one before, which it would refuse.

    Absolute paths, as on a cluster, are of folders of tables, which are resumed.
    """
    for block in re.findall(r"(?:^    .*\n)+", prose(page), re.M):
        outputs = []
        for verb, *words in commands_of(block):
            output = output_of(verb, words)
            if output is not None:
                outputs.append(output)
        assert len(outputs) == len(set(outputs)), block


RUN = {"predict", "visualize", "evaluate", "faithfulness", "export"}
"""Verbs whose commands run here. Tests of `fit` run every config,
tests of `prepare` every data set.
"""


def once_for_all_models(lines: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leaves out repeated commands, and those that another one repeats with a named checkpoint."""
    option = "--checkpoint"
    without_name = set()
    for words in lines:
        if option in words:
            place = words.index(option)
            without_name.add(words[:place] + words[place + 2 :])
    return [words for words in dict.fromkeys(lines) if words not in without_name]


@pytest.mark.slow
def test_commands_of_the_documentation_run(
    drawn: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a photo, a video of it, and drawn faces;
    tables that a command reads come from a command before it.
    """
    monkeypatch.chdir(tmp_path)
    trained = Path("runs/ferplus_teacher/version_0/checkpoints")
    for folder in ("data/sample", "photos", "videos", trained):
        Path(folder).mkdir(parents=True)
    photo = data.astronaut()
    io.imsave("photos/astronaut.png", photo)
    io.imsave("data/sample/astronaut.jpg", photo)
    write_video(Path("clip.mp4"), [photo] * 3, [0, 0.1, 0.2])
    write_video(Path("videos/clip.mov"), [photo] * 12, range(12))
    for name in (
        trained / "best.ckpt",
        trained / "last.ckpt",
        *(
            f"{name}.ckpt"
            for name in ("best", "other", "large", "from_best_a", "from_best_b", "a", "b", "c")
        ),
    ):
        Path(name).symlink_to(checkpoint)
    Path("data/ferplus.parquet").symlink_to(drawn / "faces.parquet")
    faces = pq.read_table(drawn / "faces.parquet")
    for name in ("gender", "age", "race"):
        faces = faces.append_column(name, pa.array([str(row % 2) for row in range(len(faces))]))
    pq.write_table(faces, "data/fairface.parquet")
    Path("truth.csv").write_text("path,label\nphotos/astronaut.png,happiness\n")
    Path("people.csv").write_text("path,age,gender\nphotos/astronaut.png,45,woman\n")
    # commands.md has the examples of --help, where a name has several meanings; the others have
    # tests
    apart = ("commands.md", "own_photos.md", "two_conditions.md")
    pages = [page for page in PAGES if page.name not in apart]
    every_model = [tuple(words) for page in pages for words in commands(page) if words[0] in RUN]
    for words in once_for_all_models(every_model):
        if any(word.startswith("/") for word in words):
            continue
        if words[:2] == ("evaluate", "faces.csv"):
            main(["predict", "photos", "--overwrite"])
        command = [*words, "--overwrite"]
        if words[0] == "faithfulness":
            command += ["--max_faces", "1"]
        main(command)
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCS / "how-to/explaining.md").read_text(), re.M | re.S
    )
    Path("photo.jpg").symlink_to("photos/astronaut.png")
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert len(names["explanations"].shares) == 1


@pytest.mark.slow
def test_commands_for_own_photos_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, as they stand there; models are trained for two epochs."""
    monkeypatch.chdir(tmp_path)
    train = recipe.fit
    quick = {"trainer.max_epochs": 2}
    monkeypatch.setattr(recipe, "fit", lambda *given, **more: train(*given, **more, **quick))
    drawn_as = {"calm": "neutral", "happy": "happiness"}
    numbers = {"photos": 10, "more_photos/test": 3, "new_photos": 3}  # photos of each class
    for folder, name in product(numbers, drawn_as):
        Path(folder, name).mkdir(parents=True)
        for number in range(numbers[folder]):
            face = draw_face(drawn_as[name], number + 10 * (name == "calm"), 96)[0]
            Path(folder, name, f"{number}.png").write_bytes(encode_png(face))
    lines = ["path,label"]
    for name in drawn_as:
        lines += [f"{name}/{number}.png,{name}" for number in range(numbers["photos"])]
    Path("labels.csv").write_text("\n".join(lines))
    for words in commands(DOCS / "tutorials/own_photos.md"):
        main(words)
    made = (
        "mine/model",
        "mine/evaluation/index.html",
        "mine/faces.parquet",
        "mine/training",
        "from_table/model",
    )
    assert all(
        (tmp_path / name).exists()
        for name in (*made, "new_faces.csv", "new_report/index.html", "more/index.html")
    )


@pytest.mark.slow
def test_commands_of_the_study_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn persons show happiness after the joke; the page reports it first among the results."""
    monkeypatch.chdir(tmp_path)
    Path("study").mkdir()
    lines = ["path,condition,subject"]
    ratings = ["path,label"]
    labels = {"rest": "neutral", "joke": "happiness"}
    for person, (condition, label), number in product(range(6), labels.items(), range(2)):
        path = Path("study", f"p{person}_{condition}_{number}.png")
        path.write_bytes(encode_png(draw_face(label, 2 * person + number, 192)[0]))
        lines.append(f"{path.as_posix()},{condition},p{person}")
        ratings.append(f"{path.as_posix()},{label}")
    Path("sessions.csv").write_text("\n".join(lines))
    Path("ratings.csv").write_text("\n".join(ratings))
    for words in commands(DOCS / "tutorials/two_conditions.md"):
        main(words)
    results = Path("comparison/results.md").read_text(encoding="utf-8")
    assert re.search(r"happiness is [\d.]+ higher in joke", results)
    assert Path("comparison/index.html").is_file()
    assert Path("evaluation/index.html").is_file()


@pytest.mark.slow
def test_the_examples_of_custom_training_run(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of the page, one after the other, on drawn faces; `fit` takes few steps."""
    monkeypatch.chdir(tmp_path)
    Path("faces.parquet").symlink_to(drawn / "faces.parquet")
    Path("photos").mkdir()
    for number in range(16):
        name = ("anger", "happiness")[number // 4 % 2]
        Path(f"photos/{name}-{number:02}.png").write_bytes(
            encode_png(draw_face(name, number, 64)[0])
        )
    train = train_fit.fit
    quick = {"data.batch_size": 4, "trainer.limit_train_batches": 2, "trainer.limit_val_batches": 2}
    monkeypatch.setattr(train_fit, "fit", lambda *given, **more: train(*given, **more, **quick))
    names: dict[str, Any] = {}
    for block in re.findall(
        r"^```python\n(.*?)^```", (DOCS / "how-to/custom.md").read_text(), re.M | re.S
    ):
        # A block that is a file has no names of the other blocks.
        exec(block, {} if block.startswith("# my_module.py") else names)
    assert len(names["faces"]) == 16
    assert set(names["mine"].labels) == {"anger", "happiness"}
    assert len(names["study"].trials) == 2
    for saved in ("plain.ckpt", "focal.ckpt"):
        main(
            [
                "evaluate",
                "faces.parquet",
                "--checkpoint",
                saved,
                "--output",
                saved.removesuffix(".ckpt"),
            ]
        )


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, startup_timeout=300, resources=place).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown, crop, many = (
        next(cell.outputs[0] for cell in cells if part in cell.source)
        for part in ("faces[0].plot()", "crop = ", "pair")
    )
    assert {"image/png", "image/jpeg"} & shown["data"].keys()
    assert "label='happiness'" in crop["data"]["text/plain"]
    assert re.findall("^image . face .", many["text"].replace(",", ""), re.M) == [
        *("image 0 face 0", "image 0 face 1", "image 1 face 0")
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: links that lead nowhere,
    pages outside of the contents and odd docstrings are errors.
    """
    folder = tmp_path_factory.mktemp("site")
    sphinx = (sys.executable, "-m", "sphinx", "-qW", "--keep-going", "-c", DOCS, ROOT, folder)
    done = subprocess.run(sphinx, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_fetches_nothing(site: Path) -> None:
    element = r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=.?(?:https?:)?//"
    style = r"@import|url\(.?(?:https?:)?//"
    fetched = f"{element}|{style}"
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert {site / "index.html", site / "docs/tutorials/quickstart.html"} <= set(files)
    assert [file for file in files if re.search(fetched, file.read_text(encoding="utf-8"))] == []
