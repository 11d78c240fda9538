from pathlib import Path

import yaml

import fer_vit
from fer_vit import callbacks
from fer_vit.exporting.formats import FORMATS


def test_callbacks_of_configs_are_public() -> None:
    """Configs name the classes of fer-vit by the public module alone."""
    for path in Path(fer_vit.__file__).parent.glob("configs/*.yaml"):
        trainer = yaml.safe_load(path.read_text(encoding="utf-8")).get("trainer", {})
        for callback in trainer.get("callbacks") or []:
            module, _, name = callback["class_path"].rpartition(".")
            if module.startswith("fer_vit"):
                assert module == "fer_vit.callbacks"
                assert name in callbacks.__all__


def test_packages_do_not_hide_the_functions_of_the_same_task() -> None:
    assert callable(fer_vit.export)
    assert FORMATS
