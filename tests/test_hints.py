from pathlib import Path

import pytest

from fer_vit.cli import LIGHTNING_VERBS, PLAIN_VERBS
from fer_vit.hints import NEXT, next_command

A, B = Path("a.jpg"), Path("my photos/b.jpg")


@pytest.mark.parametrize(
    ("verb", "given", "command"),
    [
        ("prepare", {"source": "drawn", "out": Path("f.parquet")}, "fit --config drawn --data.manifest f.parquet"),
        ("prepare", {"source": "rafdb", "out": Path("f")}, "fit --config rafdb --data.manifest f"),
        ("prepare", {"source": "folder", "out": Path("f.parquet")}, "fit --config finetune --data.manifest f.parquet"),
        ("prepare", {"source": "fer2013", "out": A}, "fit --config ferplus_small --data.manifest a.jpg"),
        ("distill", {"output": Path("d.parquet")}, "fit --config ferplus_small --data.manifest d.parquet"),
        ("predict", {"images": [A, B], "checkpoint": None, "output": A}, "visualize a.jpg 'my photos/b.jpg'"),
        ("visualize", {"images": [A] * 4, "checkpoint": "x"}, "faithfulness photos --checkpoint x"),
        ("visualize", {"images": [Path("a.mov")], "output": Path("r")}, "faithfulness a.mov"),
        ("predict", {"images": [Path("a.mp4")], "output": Path("f.csv")}, "visualize a.mp4"),
        (
            "predict",
            {"images": [A], "face": "crop", "detector": "none"},
            "visualize a.jpg --face crop --detector none",
        ),
        ("export", {"output": Path("model"), "checkpoint": None}, "predict photos --checkpoint model"),
        ("export", {"output": Path("model.onnx")}, "export --help"),
        ("test", {"checkpoint": "best.ckpt"}, "export my-model --checkpoint best.ckpt"),
        ("models", {}, "predict photos --checkpoint ferplus-small"),
    ],
)
def test_the_next_command(verb: str, given: dict[str, object], command: str) -> None:
    assert next_command(verb, given) == f"fer-vit {command}"


def test_every_verb_has_one_that_exists() -> None:
    verbs = {*PLAIN_VERBS, *LIGHTNING_VERBS}
    assert {key.split()[0] for key in NEXT} == verbs
    assert {command.split()[1] for command in NEXT.values()} <= verbs
