import re
import subprocess
from pathlib import Path

import pytest
import yaml

from fer_vit.store.configs import shipped_configs
from fer_vit.version import __version__

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
def test_the_notebook_runs(yunet_named: None, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(DOCS / "quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    shown = outputs["faces[0].plot()"][0]["data"]
    assert {"image/png", "image/jpeg"} & shown.keys()
    assert (
        "label='happiness'"
        in outputs['crop = photo[60:180, 175:270]\nmodel.predict(crop, face="crop")[0]'][0]["data"]["text/plain"]
    )
    many = next(found for source, found in outputs.items() if "pair" in source)[0]["text"]
    assert [line.partition(":")[0] for line in many.splitlines()] == [
        "image 0, face 0",
        "image 0, face 1",
        "image 1, face 0",
    ]


def test_recipes_of_clusters_parse_and_know_their_parts() -> None:
    batch, training, prediction = (
        (DOCS / "recipes" / name).read_text() for name in ("slurm.sh", "kubernetes_fit.yaml", "kubernetes_predict.yaml")
    )
    assert re.search(r"\A#!/bin/bash\n(#.*\n)+\n", batch), "sbatch reads its options before the first command"
    service, job = yaml.safe_load_all(training)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for script in (batch, container["args"][0]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    name = service["metadata"]["name"]
    assert f"--master_addr {name}-0.{pod['subdomain']} " in container["args"][0]
    assert job["metadata"]["name"] == service["spec"]["selector"]["job-name"] == pod["subdomain"] == name
    predicting = yaml.safe_load(prediction)["spec"]
    variables = {entry["name"]: entry.get("value") for entry in predicting["template"]["spec"]["containers"][0]["env"]}
    assert variables == {"RANK": None, "WORLD_SIZE": str(predicting["completions"])}
    for parts in (pod, predicting["template"]["spec"]):
        mounts = {mount["name"] for mount in parts["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in parts["volumes"]}
    assert {path.name for path in (DOCS / "recipes").iterdir()} == {
        "slurm.sh",
        "kubernetes_fit.yaml",
        "kubernetes_predict.yaml",
    }


def test_files_that_the_prose_names_exist() -> None:
    root = DOCS.parent
    for page in (root / "README.md", root / "CONTRIBUTING.md", root / "data/README.md", *DOCS.glob("*.md")):
        text = page.read_text()
        links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text) if "://" not in link]
        assert [link for link in links if not (page.parent / link).exists()] == [], page
        anchors = re.findall(r"\]\(([^):]*)#([\w-]+)\)", text)
        for link, anchor in anchors:
            titles = re.findall(r"^#+ (.*)$", ((page.parent / link) if link else page).read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, page
        for config in re.findall(r"--config ([\w/.]+)", text):
            assert (root / config).is_file() or config in shipped_configs(), config
        for module in re.findall(r"python -m (benchmarks\.\w+)", text):
            assert (root / f"{module.replace('.', '/')}.py").is_file(), module


def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load((DOCS.parent / "CITATION.cff").read_text())["version"] == __version__
