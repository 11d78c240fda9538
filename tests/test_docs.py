from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parents[1] / "docs"


def test_the_notebook_runs(yunet_named: None, tmp_path: Path) -> None:
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
