"""Runs the notebook and stores its results: `python -m docs.notebook`."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "tutorials" / "quickstart.ipynb"


def main() -> None:
    """Replaces the results in the file; what programs print to the terminal is left out."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, startup_timeout=300).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of this run
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            if "image/jpeg" in output.get("data", {}):
                output.data.pop("image/png", None)  # the same picture, six times as large
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
