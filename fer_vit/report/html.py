"""Renders pages that browsers open from disk, with data, style and script inside the page.

File names and labels are escaped. A content security policy allows only the page's own script, and
the pictures beside the page. The template `page.html` is the page of a report: `page.js` builds the
gallery and the large faces from JSON, with the functions and charts in the folder `page`. Browsers
load pictures only when the pictures come into view, so that a page with thousands of faces opens
quickly.
"""

import base64
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fer_vit.errors import printable
from fer_vit.report.draw import expression_colour, probability_text
from fer_vit.report.prose import printable_text
from fer_vit.report.records import data_uri
from fer_vit.stats.estimate import estimate_text
from fer_vit.texts import json_text
from fer_vit.wording import counted

FIRST_SCRIPT = "base.js"  # the script of a folder that the other scripts of the folder use


def name_parts(name: str) -> list[str]:
    """Splits a name where a line may be broken, such as `mouth`, `Smile` and `Left`."""
    return re.split("(?<=[a-z])(?=[A-Z])", name)


_LOADER = PackageLoader("fer_vit", "report")
_ENVIRONMENT = Environment(
    loader=_LOADER,
    autoescape=True,
    finalize=printable_text,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.policies["json.dumps_function"] = json_text  # for the filter `tojson`
_ENVIRONMENT.filters |= {"data_uri": data_uri, "printable": printable, "name_parts": name_parts}
_ENVIRONMENT.filters |= {"probability": probability_text, "colour": expression_colour}
_ENVIRONMENT.filters |= {"estimate": estimate_text, "counted": counted}


def render(path: Path, name: str, **values: object) -> None:
    """Writes a page: renders values with the template `NAME.html` and its script.

    An existing page is replaced.
    """
    template = _ENVIRONMENT.get_template(f"{name}.html")
    page = template.render(
        style=_source("page.css"), script=script(name), digest=script_digest(name), **values
    )
    path.write_text(page, encoding="utf-8")


def script(name: str) -> str:
    """Returns the script of a page: the files in the folder `NAME`, then `NAME.js`.

    `FIRST_SCRIPT` is the first file of the folder. A new chart is a new file in the folder; the
    other files do not change.
    """
    files = [file for file in _LOADER.list_templates() if file.startswith(f"{name}/")]
    files.sort(key=lambda file: (not file.endswith(FIRST_SCRIPT), file))
    return "\n".join(_source(file) for file in (*files, f"{name}.js"))


def script_digest(name: str) -> str:
    """Returns the SHA-256 of a page's script in base64, as content security policies need it."""
    digest = hashlib.sha256(script(name).encode()).digest()
    return base64.b64encode(digest).decode()


def _source(file: str) -> str:
    """Returns the text of a file of this package."""
    text, _, _ = _LOADER.get_source(_ENVIRONMENT, file)
    return text
