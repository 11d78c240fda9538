"""The pages of the documentation."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "tutorials" / "quickstart.ipynb"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md")),
    *sorted(ROOT.glob("fer_vit/weights/*/README.md")),
    *sorted(DOCS.glob("**/*.md")),
    NOTEBOOK,
]


def prose(page: Path) -> str:
    """A page's text, or a notebook's cells."""
    text = page.read_text(encoding="utf-8")
    return (
        text
        if page.suffix == ".md"
        else "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    )
