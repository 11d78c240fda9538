"""Imports point down only, heavy libraries stay at home, and messages can be translated.

`make lint` runs these tests.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import fer_vit
from tests.helpers.pages import PAGES, ROOT
from tests.helpers.sources import parsed

PACKAGE = ROOT / "fer_vit"
LAYERS = [
    {"errors", "geometry", "signals", "system", "version"},
    {"angles", "files"},
    {"extras", "texts", "times", "wording"},
    {"labels"},
    {"heads"},
    {
        *("conformal", "fields", "imports", "listing", "losses"),
        *("options", "pickles", "processes", "stats"),
    },
    {"faces"},
    {"face"},
    {"model_settings"},
    {"model"},
    {"explain", "report", "store"},
    {"engine"},
    {"data", "tables"},
    {"predict"},
    {"evaluation"},
    {"comparison", "sources", "visualization"},
    {"app", "train"},
    {"callbacks", "exporting"},
    {"commands", "parsers"},
    {"cli", "__init__"},
    {"__main__", "completion"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
LIGHTNING = (
    "averaging",
    "checkpoints",
    "datamodule",
    "fit",
    "log",
    "module",
    "fit_options",
    "pretraining",
    "progress",
    "resuming",
    "run",
    "symmetry",
    "task",
)
HOMES = {
    "albumentations": {"data/transforms.py"},
    "lightning": {*(f"train/{name}.py" for name in LIGHTNING)},
    "pyarrow": {
        *(f"data/{name}.py" for name in ("manifest", "schema")),
        *(
            f"tables/{name}.py"
            for name in ("cells", "json_lines", "layout", "table_reader", "text", "workbook")
        ),
        "predict/table_folder.py",
        "report/table.py",
    },
    "av": {"predict/annotate.py", "predict/frames.py"},
    "cv2": {
        *(
            f"face/{name}.py"
            for name in ("crop", "detectors", "image", "landmarks", "pose", "yunet")
        ),
        "evaluation/robustness.py",
        "predict/video.py",
        "predict/annotate.py",
        "predict/hdr.py",
        "predict/camera.py",
        "predict/photos.py",
        "predict/shots.py",
        "processes.py",
        *(f"sources/{name}.py" for name in ("cartoon", "duplicates", "add_landmarks")),
    },
    "onnxruntime": {"engine/onnx_engine.py", "exporting/graphs.py", "face/network.py"},
    "fastapi": {"app/api.py", "app/server.py"},
    "starlette": {*(f"app/{name}.py" for name in ("api", "guard", "server", "uploads"))},
    "uvicorn": {"app/server.py"},
    "jinja2": {"report/records.py", "report/html.py", "report/prose.py"},
    "matplotlib": {
        *(
            f"report/{name}.py"
            for name in ("face_figures", "fonts", "interval_figures", "rendering", "score_figures")
        )
    },
    "openpyxl": {"tables/workbook.py", "report/table.py"},
}
HEAVY = {"torch", "torchvision", "timm"}
FORBIDDEN = {
    "face": HEAVY,
    "model_settings": HEAVY | {"jsonargparse", "pydantic"},
    "report": HEAVY | {"cv2"},
    "tables": HEAVY,
    "geometry": HEAVY | {"cv2"},
    "conformal": HEAVY,
    "faces": HEAVY | {"cv2", "pyarrow", "PIL"},
    "fields": HEAVY | {"cv2", "pyarrow", "PIL"},
    "heads": HEAVY | {"cv2", "pyarrow", "PIL"},
}
RARE = {
    "av": {
        "commands/live.py",
        *(f"predict/{name}.py" for name in ("annotate", "camera", "frames", "video")),
    },
    "fastapi": {"app/api.py", "app/server.py"},
    "onnx": set[str](),
    "onnxscript": set[str](),
    "openpyxl": set[str](),
    "starlette": {*(f"app/{name}.py" for name in ("api", "guard", "server", "tasks", "uploads"))},
    "uvicorn": {"app/server.py"},
}
"""Packages that few commands need, and the files that cannot be imported without them."""
FILES = sorted(PACKAGE.rglob("*.py"))
TRANSLATED = r"`--[^`]*`|`?\bfer-vit [^`]*"
"""Options in backquotes, which become arguments; and commands, which stay."""
OPTION = re.compile(
    r"--[a-z]|(?<!=)\b(model|data|trainer|checkpoint|network)\.(?!safetensors\b)[a-z_]+\b(?!\()"
)
"""An option of the command line, or a setting of a config, but not the file of a model."""

NO_DOORS = {
    r"fer_vit\.\w+": "the package itself",
    r"fer_vit\.app\.(jobs\.Ready|tasks\.column_types)": "what a worker tells that is ready",
    r"fer_vit\.cli\.(printed_log|run_plain|run_verb)": "a command in this process",
    r"fer_vit\.commands\..*": "the command line imports commands by their names",
    r"fer_vit\.face\.(landmarks\.look|landmarks\.Look|detectors\.refine_points)": (
        "faces that only the detector of a test sees"
    ),
    r"fer_vit\.model\..*": "layers, which tests compare with timm and torch.nn",
    r"fer_vit\.sources\.\w+\.read": "`SOURCES` has the readers of data sets",
    r"fer_vit\.sources\.(cartoon|movements)\..*": "drawn faces, whose truth tests know",
    r"fer_vit\.stats\.bootstrap\.RESAMPLES": "few resamples take little time",
    r"fer_vit\.(app\.tasks\.EXPLAIN_MEMORY|visualization\.network_evidence\.faces_at_once)": (
        "how many faces fit into the memory, which no file shows"
    ),
    r"fer_vit\.train\.checkpoints\.AtomicCheckpointIO": "what a process writes that is killed",
    r"fer_vit\.train\.recipe\.fit": "a training that a test shortens, or leaves out",
    r"fer_vit\.sources\.add_landmarks\.IMAGES_PER_WORKER": "a few images start processes",
}
"""Names that tests use although nothing outside of their room imports them, with the reason."""
NOT_YET = {
    "app/test_tasks.py",
    "commands/test_compare.py",
    "commands/test_evaluate.py",
    "commands/test_faithfulness.py",
    "comparison/test_study.py",
    "evaluation/test_outputs.py",
    "evaluation/test_robustness.py",
    "helpers/servers.py",
    "report/test_draw.py",
    "report/test_face_figures.py",
    "report/test_figures.py",
    "report/test_fonts.py",
    "report/test_html.py",
    "report/test_intervals.py",
    "report/test_panels.py",
    "report/test_table.py",
    "tables/test_cells.py",
    "tables/test_expressions.py",
    "tables/test_read.py",
    "tables/test_types.py",
}
"""Tests that still use names from inside a room."""


def imported(path: Path) -> set[str]:
    return imported_names(ast.walk(parsed(path)))


def imported_names(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported: no statements of functions."""
    for child in ast.iter_child_nodes(node):
        only_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or only_for_types:
            continue
        yield child
        yield from run_at_import(child)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path) for path in FILES}


@pytest.fixture(scope="module")
def at_import() -> dict[Path, set[str]]:
    """What each file imports when it is imported itself."""
    return {path: imported_names(run_at_import(parsed(path))) for path in FILES}


@pytest.mark.parametrize("package", RARE)
def test_few_files_need_a_rare_package(package: str, at_import: dict[Path, set[str]]) -> None:
    needing = set[Path]()
    before = None
    while before != needing:
        before = needing
        modules = {package, *(module_name(path) for path in needing)}
        needing = {
            path
            for path, names in at_import.items()
            if names & modules or any(name.startswith(f"{package}.") for name in names)
        }
    assert {str(path.relative_to(PACKAGE)) for path in needing} == RARE[package]


def wrong_imports(path: Path) -> Iterator[str]:
    """What is wrong with the imports of a file."""
    file = str(path.relative_to(PACKAGE))
    room = file.split("/")[0].removesuffix(".py")
    names = imported(path)
    if "fer_vit" in names and room != "__init__":
        yield f"{file} imports the package's door, which leads upwards"
    if room == "data" and any(name.startswith("fer_vit.model") for name in names):
        yield f"{file} imports a model"
    for name in names:
        root, *rest = name.split(".")
        is_inner = root == "fer_vit" and rest and rest[0] in LEVEL and rest[0] != room
        if is_inner and LEVEL[rest[0]] >= LEVEL[room]:
            yield f"{file} imports {name}"
        if file not in HOMES.get(root, {file}) or root in FORBIDDEN.get(room, set()):
            yield f"{file} imports {name}"


def test_imports_point_down() -> None:
    assert [line for path in FILES for line in wrong_imports(path)] == []


def test_every_room_is_known() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == LEVEL.keys()


def test_the_map_names_packages_and_joins_its_boxes() -> None:
    text = (PACKAGE.parent / "docs/explanation/map.md").read_text("utf-8")
    boxes = dict(re.findall(r'(\w+)\[/?"[^<"]+<br/>([\w, ]+)"', text))
    rooms = {room for names in boxes.values() for room in names.split(", ")}
    assert rooms <= LEVEL.keys()
    assert {"face", "engine", "faces", "data", "model", "store"} <= rooms
    mentioned = set(re.findall(r"(\w+)(?:[\[(][^\n]*[\])])? -- ?(?:\w+ --)?>", text))
    assert mentioned <= {*boxes, "photo", "dataset"}


def test_only_commands_print() -> None:
    for path in FILES:
        place = path.relative_to(PACKAGE)
        if place.parts[0] in ("cli.py", "commands"):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{place}:{node.lineno}: use the logger fer_vit"


def constants(path: Path) -> list[str]:
    """The texts of a file with spaces, without docstrings; values in them are braces."""
    tree = parsed(path)
    left_out: set[ast.expr] = set()
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        if isinstance(node, ast.JoinedStr):
            left_out |= set(node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            texts.append("".join(map(str, parts)))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node not in left_out:
            texts.append(node.value)
    return [text for text in texts if " " in text]


def test_options_in_messages_can_be_translated() -> None:
    for path in FILES:
        if path in (PACKAGE / "cli.py", PACKAGE / "parsers.py"):
            continue
        for text in constants(path):
            remaining = re.sub(TRANSLATED, "", text)
            assert not OPTION.search(remaining), f"{path}: name the option in backquotes: {text}"


def modules_in_scope(path: Path) -> dict[str, str]:
    """The modules of the package that a file imports, by the names that they have there."""
    modules = dict[str, str]()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name: module for name, module in modules.items() if module in MODULES}


def used_names(path: Path) -> set[str]:
    """The names of the package that a file imports, reads from an imported module, or patches."""
    names = imported(path) - MODULES
    modules = modules_in_scope(path)
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Attribute(ast.Name(owner), name):
                names.add(f"{modules.get(owner)}.{name}")
            case ast.Call(ast.Attribute(attr="setattr"), [ast.Name(owner), ast.Constant(name), *_]):
                names.add(f"{modules.get(owner)}.{name}")
            case ast.Call(ast.Attribute(attr="setattr"), [ast.Constant(name), *_]):
                names.add(str(name))
    return {name for name in names if name.startswith("fer_vit.") and "__" not in name}


def find_doors() -> set[str]:
    """The names that another room, `docs/` or `web/` uses, or that the documentation names."""
    doors = {f"fer_vit.{home}.{name}" for name, home in fer_vit.HOMES.items()}
    for path in FILES:
        own_room = ".".join(module_name(path).split(".")[:2])
        used = used_names(path)
        doors |= {name for name in used if not name.startswith(f"{own_room}.")}
        if path.name == "__init__.py":
            doors |= used
    for path in (*ROOT.glob("docs/*.py"), *ROOT.glob("web/*.py")):
        doors |= used_names(path)
    for page in PAGES:
        text = page.read_text("utf-8")
        doors |= set(re.findall(r"fer_vit(?:\.\w+)+", text))
        for name, file in re.findall(r"`(\w+)` in `([\w/]+)\.py`", text):
            doors.add(f"fer_vit.{file.replace('/', '.')}.{name}")
        for module, names in re.findall(r"from (fer_vit[\w.]*) import ([\w, ]+)", text):
            doors |= {f"{module}.{name.strip()}" for name in names.split(",")}
    return doors


def test_tests_use_doors() -> None:
    """So that a room can be rebuilt without its tests."""
    allowed = re.compile("|".join(NO_DOORS))
    doors = find_doors()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = str(path.relative_to(ROOT / "tests"))
        inner = {name for name in used_names(path) - doors if not allowed.fullmatch(name)}
        assert bool(inner) == (file in NOT_YET), f"{file}: {inner}"
