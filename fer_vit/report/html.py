"""Pages that open from disk, with their data, style and script inside.

File names and labels are escaped, and a content security policy allows only the page's own script
and the pictures beside the page. The page `page` is the one of a report: `page.js` builds the
gallery and the large faces from JSON, with the functions and charts in the folder `page`. The
browser loads pictures only when they come into view, so that a page of thousands of faces opens
quickly.
"""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fer_vit.errors import printable
from fer_vit.report.draw import expression_colour, probability_text
from fer_vit.report.faces import data_uri
from fer_vit.texts import json_text

FIRST_SCRIPT = "base.js"  # of the scripts in a folder, which the others use


def _printable_text(value: Any) -> Any:
    """Returns text as it may be printed; numbers, and text that is marked safe, unchanged."""
    return printable(value) if type(value) is str else value


def name_parts(name: str) -> list[str]:
    """Returns the parts of a name between which a line may be broken: `mouth`, `Smile`, `Left`."""
    return re.split("(?<=[a-z])(?=[A-Z])", name)


_LOADER = PackageLoader("fer_vit", "report")
_ENVIRONMENT = Environment(
    loader=_LOADER,
    autoescape=True,
    finalize=_printable_text,
    trim_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.policies["json.dumps_function"] = json_text  # of the filter `tojson`
_ENVIRONMENT.filters |= {"data_uri": data_uri, "printable": printable, "name_parts": name_parts}
_ENVIRONMENT.filters |= {"probability": probability_text, "colour": expression_colour}


def render(path: Path, name: str, **values: object) -> None:
    """Renders values with the template `NAME.html` and its script.

    An existing page is replaced.
    """
    template = _ENVIRONMENT.get_template(f"{name}.html")
    page = template.render(
        style=_source("page.css"), script=script(name), digest=script_digest(name), **values
    )
    path.write_text(page, encoding="utf-8")


def script(name: str) -> str:
    """Returns the script of a page: the files of the folder `NAME`, then `NAME.js`.

    `FIRST_SCRIPT` comes first. A file in the folder becomes part of the page: a new chart needs no
    change of the others.
    """
    files = [file for file in _LOADER.list_templates() if file.startswith(f"{name}/")]
    files.sort(key=lambda file: (not file.endswith(FIRST_SCRIPT), file))
    return "\n".join(_source(file) for file in (*files, f"{name}.js"))


def script_digest(name: str) -> str:
    """Returns the SHA-256 of the script of a page as content security policies name it."""
    digest = hashlib.sha256(script(name).encode()).digest()
    return base64.b64encode(digest).decode()


def _source(file: str) -> str:
    """Returns the text of a file of this package."""
    text, _, _ = _LOADER.get_source(_ENVIRONMENT, file)
    return text
