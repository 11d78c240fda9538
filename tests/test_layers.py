"""Imports point down only, and every heavy library stays at home."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.helpers.sources import parsed

PACKAGE = Path(__file__).parents[1] / "fer_vit"
LAYERS = [
    {"errors", "geometry", "signals", "system", "version"},
    {"angles", "files"},
    {"extras", "heads", "texts", "times", "wording"},
    {
        *("conformal", "fields", "imports", "labels", "listing", "losses"),
        *("pickles", "processes", "stats"),
    },
    {"faces"},
    {"model"},
    {"explain", "report", "store", "face"},
    {"data", "tables"},
    {"predict"},
    {"evaluation"},
    {"comparison", "sources", "visualization"},
    {"app", "train"},
    {"callbacks", "exporting"},
    {"commands"},
    {"cli", "__init__"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
LIGHTNING = (
    "averaging",
    "checkpoints",
    "cli",
    "datamodule",
    "log",
    "module",
    "options",
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
        *(f"data/{name}.py" for name in ("manifest", "schema", "shards")),
        *(
            f"tables/{name}.py"
            for name in ("cells", "json_lines", "layout", "read", "text", "workbook")
        ),
        "predict/tables.py",
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
        "predict/live.py",
        "predict/photos.py",
        "predict/shots.py",
        "processes.py",
        *(f"sources/{name}.py" for name in ("cartoon", "duplicates", "landmarks")),
    },
    "onnxruntime": {"exporting/formats.py", "face/network.py"},
    "fastapi": {"app/api.py", "app/server.py"},
    "starlette": {*(f"app/{name}.py" for name in ("api", "guard", "server", "uploads"))},
    "uvicorn": {"app/server.py"},
    "jinja2": {"report/faces.py", "report/html.py", "report/prose.py"},
    "matplotlib": {
        *(f"report/{name}.py" for name in ("face_figures", "fonts", "rendering", "score_figures"))
    },
    "openpyxl": {"tables/workbook.py", "report/table.py"},
}
HEAVY = {"torch", "torchvision", "timm"}
FORBIDDEN = {
    "face": HEAVY,
    "report": HEAVY | {"cv2"},
    "tables": HEAVY,
    "geometry": HEAVY | {"cv2"},
    "conformal": HEAVY,
    "faces": HEAVY | {"cv2", "pyarrow", "PIL"},
    "fields": HEAVY | {"cv2", "pyarrow", "PIL"},
    "heads": HEAVY | {"cv2", "pyarrow", "PIL"},
}
OPTIONAL = {
    "av": {
        "commands/live.py",
        *(f"predict/{name}.py" for name in ("annotate", "frames", "live", "video")),
    },
    "fastapi": {"app/api.py", "app/server.py"},
    "onnx": set[str](),
    "onnxscript": set[str](),
    "openpyxl": set[str](),
    "starlette": {*(f"app/{name}.py" for name in ("api", "guard", "server", "tasks", "uploads"))},
    "uvicorn": {"app/server.py"},
}
"""Packages of the extras, and the files that cannot be imported without them."""
FILES = sorted(PACKAGE.rglob("*.py"))


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


@pytest.fixture(scope="module")
def at_import() -> dict[Path, set[str]]:
    """What each file imports when it is imported itself."""
    return {path: imported_names(run_at_import(parsed(path))) for path in FILES}


@pytest.mark.parametrize("package", OPTIONAL)
def test_few_files_need_an_optional_package(package: str, at_import: dict[Path, set[str]]) -> None:
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
    assert {str(path.relative_to(PACKAGE)) for path in needing} == OPTIONAL[package]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    file = str(path.relative_to(PACKAGE))
    room = file.split("/")[0].removesuffix(".py")
    names = imported(path)
    assert "fer_vit" not in names or room == "__init__", (
        f"{file} imports the package's door, which leads upwards"
    )
    assert not (room == "data" and any(name.startswith("fer_vit.model") for name in names)), (
        f"{file} imports a model"
    )
    for name in names:
        root, *rest = name.split(".")
        if root == "fer_vit" and rest and rest[0] in LEVEL and rest[0] != room:
            assert LEVEL[rest[0]] < LEVEL[room], f"{file} imports {name}"
        assert file in HOMES.get(root, {file}), f"{file} imports {name}"
        assert root not in FORBIDDEN.get(room, set()), f"{file} imports {name}"


def test_every_room_is_known() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == LEVEL.keys()


def test_only_commands_print() -> None:
    for path in FILES:
        place = path.relative_to(PACKAGE)
        if place.parts[0] in ("cli.py", "commands"):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{place}:{node.lineno}: use the logger fer_vit"
