"""Texts and numbers of the documentation agree with the code: `make lint` runs these tests."""

import json
import re

import pytest
import yaml

import fer_vit
from docs import generate
from fer_vit.commands.configs import measured_accuracy
from fer_vit.explain.methods import METHODS_HELP
from fer_vit.exporting.formats import FORMATS_HELP
from fer_vit.face.detectors import DETECTORS_HELP
from fer_vit.fields import table_columns
from fer_vit.heads import HEADS, MEANS, HeadOutputs
from fer_vit.model.attention import POOLS
from fer_vit.predict.smoothing import RECORDED
from fer_vit.sources import SOURCES
from fer_vit.store.config_files import shipped_configs
from fer_vit.store.hub import CONFIG_FILE, DEFAULT_MODEL, shipped_models
from fer_vit.version import __version__
from fer_vit.wording import join_names
from tests.helpers.pages import PAGES, ROOT, prose


@pytest.mark.parametrize("name", generate.PAGES)
def test_reference_pages_are_those_of_the_code(name: str) -> None:
    assert (generate.REFERENCE / name).read_text(encoding="utf-8") == generate.render(name), (
        "`make reference` writes these pages"
    )


def test_every_public_name_is_on_the_page_of_python() -> None:
    page = (generate.REFERENCE / "python.md").read_text(encoding="utf-8")
    documented = {name.rpartition(".")[2] for name in re.findall(r"auto\w+:: ([\w.]+)", page)}
    assert set(fer_vit.HOMES) <= documented


def test_files_that_the_prose_names_exist() -> None:
    for page in PAGES:
        text = prose(page)
        for link, anchor in re.findall(r"\]\((?!\w+://)([^)#]*)#?([\w-]*)\)", text):
            target = page.parent / link if link else page
            assert target.exists(), (page, link)
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if anchor else []
            assert anchor in {
                "",
                *(re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles),
            }, page
        for config in re.findall(r"--config ([\w/.]+)", text):
            assert (ROOT / config).is_file() or config in shipped_configs(), config
        for module in re.findall(r"python -m (benchmarks\.\w+)", text):
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module


def test_every_config_of_a_training_is_in_the_table() -> None:
    table = (ROOT / "docs/how-to/training.md").read_text("utf-8")
    described = set(re.findall(r"configs/(\w+)\.yaml", table))
    # configs that are laid over another config, and the config of an experiment
    layers = {"ddp", "ablation", "attention_is_all_you_need"}
    assert set(shipped_configs()) - layers <= described


def test_the_table_of_configs_has_the_accuracies_of_their_headers() -> None:
    """`fer-vit configs` prints the accuracy that the header of a config states."""
    table = (ROOT / "docs/how-to/training.md").read_text("utf-8")
    for name, path in shipped_configs().items():
        accuracy = measured_accuracy(path.read_text("utf-8"))
        row = re.search(rf"^\| \[{name}\].*\| ([^|]+) \|$", table, re.M)
        if accuracy and row:
            assert accuracy.partition("%")[0] in row[1], name
        elif row:
            assert not re.search(r"\d%", row[1]), name


def test_the_table_of_models_marks_the_default_from_which_finetune_starts() -> None:
    table = (ROOT / "docs/results/models.md").read_text("utf-8")
    assert re.findall(r"^\| \[(\S+)\]\(\S+\) \(default\)", table, re.M) == [DEFAULT_MODEL]
    assert (
        yaml.safe_load(shipped_configs()["finetune"].read_text())["model"]["init"] == DEFAULT_MODEL
    )


def test_readme_counts_the_columns_of_its_table() -> None:
    settings = json.loads((shipped_models()[DEFAULT_MODEL] / CONFIG_FILE).read_text())
    outputs = HeadOutputs.of_names(settings["outputs"], DEFAULT_MODEL)
    columns = table_columns(settings["labels"], outputs=outputs)
    row = re.search(
        r"^\| (path \|.*) \| (\d+) more columns \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert row
    assert len(columns) == len(row[1].split("|")) + int(row[2])


def test_the_docs_list_the_means_of_both_sides() -> None:
    text = (ROOT / "docs/how-to/heads.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(move_\w+)`, `(move_\w+)` \|$", text, re.M)
    assert {name: (first, second) for name, first, second in rows} == MEANS


def test_each_data_set_has_a_section() -> None:
    """Errors about the files of a data set refer to it."""
    text = (ROOT / "data/README.md").read_text()
    assert {*SOURCES} <= {*re.findall(r"^## (\w+)$", text, re.MULTILINE)}


def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


@pytest.mark.parametrize(
    ("page", "section", "table"),
    [
        ("commands", "prepare", [join_names(SOURCES), DETECTORS_HELP]),
        ("commands", "predict", [DETECTORS_HELP, *HEADS, RECORDED.meaning]),
        ("commands", "visualize", [METHODS_HELP]),
        ("commands", "export", [FORMATS_HELP]),
        ("settings", "The network", [f"{name}: {pool.meaning}" for name, pool in POOLS.items()]),
    ],
)
def test_the_help_names_each_entry_of_a_table(page: str, section: str, table: list[str]) -> None:
    text = (ROOT / f"docs/reference/{page}.md").read_text()
    lines = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
    help_of = " ".join(lines.split())
    assert [entry for entry in table if entry not in help_of] == []
