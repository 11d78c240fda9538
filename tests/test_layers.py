"""Imports point down only, and every heavy library stays at home."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fer_vit"
LAYERS = [
    {"errors"},
    {"losses", "metrics", "labels", "files"},
    {"model", "face", "report"},
    {"explain", "data"},
    {"task", "callbacks", "sources", "recognizer"},
    {"commands"},
    {"cli", "__init__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
HOMES = {
    "albumentations": {"data/transforms.py"},
    "lightning": {"task.py", "callbacks.py", "data/datamodule.py", "commands/train.py"},
    "litdata": {"data/stream.py"},
    "pyarrow": {"data/manifest.py", "data/plan.py", "data/shards.py", "report/table.py"},
    "cv2": {
        "face/geometry.py",
        "face/image.py",
        "face/detect.py",
        "data/photos.py",
        "commands/prepare.py",
        "sources/drawn.py",
    },
    "matplotlib": {"report/confusion.py", "report/heads.py", "report/faithfulness.py", "report/relations.py"},
}
FORBIDDEN = {"face": {"torch", "torchvision", "timm"}, "report": {"torch", "torchvision", "timm", "cv2"}}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    file = str(path.relative_to(PACKAGE))
    room = file.split("/")[0].removesuffix(".py")
    names = imported(path)
    for name in names:
        root, *rest = name.split(".")
        if root == "fer_vit" and rest and rest[0] in LEVEL and rest[0] != room:
            assert LEVEL[rest[0]] < LEVEL[room], f"{file} imports {name}"
        assert file in HOMES.get(root, {file}), f"{file} imports {name}"
        assert root not in FORBIDDEN.get(room, set()), f"{file} imports {name}"


def test_every_room_is_known() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == LEVEL.keys()
