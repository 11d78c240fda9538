"""How Sphinx makes the site of this documentation: `make docs`, without the network."""

import shutil

import mermaidx
from sphinx.application import Sphinx

from fer_vit.version import __version__

project = html_title = "fer-vit"
release = __version__
# Sphinx starts at the top of the project, so that links between pages hold on the site as they do
# in the repository.
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "data/README.md",
    "docs/**/*.md",
    "docs/**/*.ipynb",
    "fer_vit/weights/*/README.md",
]
exclude_patterns = [".*", "build", "demo", "dist", "runs", "data/*/*"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nb_execution_mode = "off"  # the notebook has its results; a test runs it
myst_heading_anchors = 3
highlight_language = "bash"
default_role = "code"  # docstrings are in Markdown's style
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_attr_annotations = False  # `numpy.object_` would be read as a link

html_theme = "furo"
html_copy_source = html_show_sphinx = False

CONTENTS = """
```{toctree}
:caption: Tutorials
:hidden:

docs/tutorials/first_report
docs/tutorials/own_photos
docs/tutorials/two_conditions
docs/tutorials/quickstart
```

```{toctree}
:caption: How-to
:hidden:

docs/how-to/install
docs/how-to/predict
docs/how-to/video
docs/how-to/live
docs/how-to/app
docs/how-to/browser
docs/how-to/reverse_proxy
docs/how-to/rest
docs/how-to/r
docs/how-to/explaining
docs/how-to/evaluate
docs/how-to/compare
data/README
docs/how-to/training
docs/how-to/heads
docs/how-to/crossvalidate
docs/how-to/distill
docs/how-to/pretrain
docs/how-to/symmetry
docs/how-to/custom
docs/how-to/scaling
docs/how-to/export
```

```{toctree}
:caption: Reference
:hidden:

docs/reference/commands
docs/reference/settings
docs/reference/columns
docs/reference/manifest
docs/reference/tables
docs/reference/video_files
docs/reference/python
docs/reference/rest
docs/reference/limits
docs/reference/stability
docs/reference/glossary
CHANGELOG
CONTRIBUTING
CODE_OF_CONDUCT
SECURITY
```

```{toctree}
:caption: Explanation
:hidden:

docs/explanation/labels
docs/explanation/how_it_works
docs/explanation/map
docs/explanation/finding_faces
docs/explanation/faithfulness
docs/explanation/ambiguous_faces
docs/explanation/reliability
```

```{toctree}
:caption: Results
:glob:
:hidden:

docs/results/models
fer_vit/weights/*/README
docs/results/other_tools
docs/results/benchmarks
docs/results/ablation
docs/results/finetuning
docs/results/statistics
benchmarks/README
```
"""


def draw_diagrams(app: Sphinx, page: str, source: list[str]) -> None:
    """Draws the Mermaid diagrams of a page, so that the site needs no script for them."""
    parts = source[0].split("```mermaid\n")
    for number in range(1, len(parts)):
        diagram, _, text = parts[number].partition("```")
        parts[number] = f"```{{raw}} html\n{mermaidx.render(diagram).svg()}\n```{text}"
    source[0] = "".join(parts)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Gives the first page the contents of the site, which a reader of README.md does not need."""
    if page == root_doc:
        source[0] += CONTENTS


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Makes the first page the one that opens at the site's address."""
    if error is None:
        shutil.copy(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("source-read", draw_diagrams)
    app.connect("build-finished", add_index)
