"""Prose uses plain English and the standard terms, and variables name what they are."""

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
TERMS = {
    r"twins?": "near-duplicate",
    r"taggers?": "annotator",
    r"unsure": "ambiguous",
    r"left-out fold|fold that is left out": "held-out fold",
    r"look_closer": "refine_landmarks",
    r"those of|that of": "the noun itself",
    r"whatever|whoever": "a noun",
    r"as it is|as they are": "unaltered",
    r"of (?:its|their|his|her) own": "its, their",
    r"theirs": "the noun itself",
    r"says?|said|tells?|told|asks?|asked": "report, return, raise, print, request",
    r"judges?|judged|flatters?": "test, evaluate, score",
    r"knows": "has, stores, imports",
    r"speaks? (?:for|against|most)": "contribute to",
    r"goes on|go on|went on": "continue",
    r"forgets?|forgotten|remembers?": "clear, remove, store",
    r"hears?|believes?|talks?|complains?|pretends?|dares?|hopes?": "what the program does",
    r"strangers?": "untrusted file, other user",
    r"honest(?:ly)?|really|merely|basically|obviously": "nothing",
    r"whichever|whenever|wherever|anybody": "each, any, where",
    r"hence|thus|lest|albeit|upon|alike": "so, on, although, equal",
    r"nobody|by itself": "no user, no face, alone",
    r"any more|once more": "no longer, again",
    r"none that|that which|no certainty|left alone|in vain": "a positive statement",
}
"""What is rejected, and what to write instead."""
REJECTED = re.compile("|".join(rf"\b(?:{words})\b" for words in TERMS), re.IGNORECASE)
CODE = re.compile(
    r"^---\n.*?^---$|^```.*?^```$|^ {4}[^\n]*$|`[^`]+`|\]\([^)]*\)|<https?:[^>]*>",
    re.DOTALL | re.MULTILINE,
)
"""Front matter, code and the targets of links."""
HEADLESS = re.compile(r"# of |^ +\*{0,2}\w+: Of ")
"""The beginning of a comment, or of the description of an argument, without a subject."""
NAMELESS = {"one", "found", "other", "there", "some", "own"}
"""Names of variables that a reader has to look up."""


def prose() -> list[Path]:
    """Every page, the notebook, and all Python and YAML files: names, docstrings,
    comments and messages.
    """
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob(".github/**/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("docs/**/*.ipynb"),
    ]
    pages += [ROOT / name for name in ("data/README.md", "benchmarks/README.md")]
    pages += ROOT.glob("fer_vit/weights/*/README.md")
    files = [
        file
        for folder in ("benchmarks", "configs", "docs", "fer_vit", "tests")
        for file in sorted((ROOT / folder).rglob("*"))
    ]
    unchecked = {
        ROOT / "tests" / name
        for name in ("offline", "report", "visualization", Path(__file__).name)
    }
    files = [file for file in files if unchecked.isdisjoint([file, *file.parents])]
    return pages + [file for file in files if file.suffix in (".py", ".yaml")]


def text(path: Path) -> str:
    """The prose of a page; other files as a whole."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [
            cell["source"]
            for cell in json.loads(content)["cells"]
            if cell["cell_type"] == "markdown"
        ]
        content = "\n".join("".join(lines) for lines in cells)
    return content if path.suffix in (".py", ".yaml") else without_code(content)


def without_code(page: str) -> str:
    """Replaces code by empty lines."""
    return CODE.sub(lambda match: "\n" * match[0].count("\n"), page)


def rejected(prose: str) -> list[str]:
    """Rejected words with their lines."""
    lines = enumerate(prose.splitlines(), 1)
    return [f"{number}: {match[0]}" for number, line in lines for match in REJECTED.finditer(line)]


def test_rejected_words() -> None:
    lines = []
    for path in prose():
        lines += [f"{path.relative_to(ROOT)}:{line}" for line in rejected(text(path))]
    assert lines == [], f"write instead: {TERMS}"


def test_words_are_rejected_in_prose_and_not_in_code() -> None:
    page = (
        "The page tells\n`tells`\n\n    tells\n\n[a](tells.md) a twin of its own\n```\nsays\n```\n"
    )
    assert rejected(without_code(page)) == ["1: tells", "6: twin", "6: of its own"]


def nameless(source: str) -> list[str]:
    """Variables and arguments that have no name of their thing, with their lines.

    Left out are the arguments of Python's operators and the fields of classes: names of results.
    """
    allowed: set[ast.AST] = set()
    names = []
    for node in ast.walk(ast.parse(source)):  # a class or function before its parts
        if isinstance(node, ast.FunctionDef) and node.name.startswith("__"):
            allowed.update(node.args.args)
        elif isinstance(node, ast.ClassDef):
            allowed.update(part.target for part in node.body if isinstance(part, ast.AnnAssign))
        elif node in allowed:
            continue
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.col_offset, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.col_offset, node.id))
    return [f"{line}: {name}" for line, _, name in sorted(names) if name in NAMELESS]


def texts_below_constants(source: str) -> list[str]:
    """Constants of a module with a docstring below them, with their lines.

    An editor does not show it, and the eye takes it for the next constant's.
    """
    body = ast.parse(source).body
    lines = []
    for constant, text_below in pairwise(body):
        is_constant = isinstance(constant, ast.Assign | ast.AnnAssign)
        is_text = isinstance(text_below, ast.Expr) and isinstance(text_below.value, ast.Constant)
        if is_constant and is_text:
            lines.append(f"{constant.lineno}: {ast.unparse(constant)[:40]}")
    return lines


def test_comments_of_constants_stand_behind_or_above_them() -> None:
    lines = []
    for path in sorted((ROOT / "fer_vit").rglob("*.py")):
        below = texts_below_constants(text(path))
        lines += [f"{path.relative_to(ROOT)}:{line}" for line in below]
    assert lines == []


def test_texts_below_constants_are_found() -> None:
    source = '"""A module."""\nA = 1  # one\n# two\nB = 2\nC: int = 3\n"""three"""\n'
    assert texts_below_constants(source) == ["5: C: int = 3"]


def headless(source: str) -> list[str]:
    """Comments and descriptions of arguments that begin with "of", with their lines.

    Their noun is in the name beside them or further away.
    """
    lines = source.splitlines()
    found_lines = []
    for number, line in enumerate(lines, 1):
        before = lines[number - 2].lstrip() if number > 1 else ""
        continues = line.lstrip().startswith("#") and before.startswith("#")
        if HEADLESS.search(line) and not continues:
            found_lines.append(f"{number}: {line.strip()[:60]}")
    return found_lines


def test_comments_begin_with_their_subject() -> None:
    lines = []
    for path in sorted((ROOT / "fer_vit").rglob("*.py")):
        lines += [f"{path.relative_to(ROOT)}:{line}" for line in headless(text(path))]
    assert lines == []


def test_comments_without_a_subject_are_found() -> None:
    source = """
A = 1  # of a page
# Half
# of a page
B = 2  # pages, of which half are white
def open(page: int) -> None:
    '''Opens.

    Args:
        page: Of the book.
    '''
"""
    assert headless(source) == ["2: A = 1  # of a page", "10: page: Of the book."]


def test_variables_name_what_they_are() -> None:
    lines = []
    for folder in ("benchmarks", "docs", "fer_vit", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines += [f"{path.relative_to(ROOT)}:{line}" for line in nameless(text(path))]
    assert lines == []


def test_nameless_variables_are_rejected_everywhere_but_in_operators_and_fields() -> None:
    source = """
class Pair:
    other: float

    def __eq__(self, other): ...
    def add(self, other): ...

for one, found in pairs:
    taken = lambda some: [there for there in found]
"""
    assert nameless(source) == ["6: other", "8: one", "8: found", "9: some", "9: there"]
