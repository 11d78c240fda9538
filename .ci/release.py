"""Checks that a tag, the version, the citation and the changelog agree; writes the notes of the
release.

python .ci/release.py v0.2.0 build/notes.md
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read_version(root: Path) -> str:
    """Returns the version of the package."""
    text = (root / "fer_vit/version.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)[0]


def find_problems(root: Path, tag: str) -> list[str]:
    """Returns a sentence for each file that does not fit the tag."""
    version = tag.removeprefix("v")
    problems = []
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        problems.append(f"Expected a tag such as v0.2.0, but got {tag}.")
    if read_version(root) != version:
        problems.append(f"fer_vit/version.py has {read_version(root)}.")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        problems.append(f"CITATION.cff does not have the version {version}.")
    if not read_notes(root, version):
        problems.append(f"CHANGELOG.md has no section `## {version}`.")
    return problems


def read_notes(root: Path, version: str) -> str:
    """Returns the text of a version in the changelog; empty if there is none."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)"
    found = re.search(section, text, re.M | re.S)
    return found[1].strip() if found else ""


def main(tag: str, output: str) -> None:
    """Ends with status 1 when something does not fit; writes the notes."""
    problems = find_problems(ROOT, tag)
    if problems:
        sys.exit("\n".join(problems))
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(read_notes(ROOT, tag.removeprefix("v")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
