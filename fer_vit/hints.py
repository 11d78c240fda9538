"""What a user will probably do next: the last line of a command in a terminal."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NEXT = {
    "prepare": "fer-vit fit --config ferplus_small --data.manifest {out}",
    "prepare drawn": "fer-vit fit --config drawn --data.manifest {out}",
    "prepare rafdb": "fer-vit fit --config rafdb --data.manifest {out}",
    "prepare affectnet": "fer-vit fit --config affectnet --data.manifest {out}",
    "prepare folder": "fer-vit fit --config finetune --data.manifest {out}",
    "prepare fairface": "fer-vit distill ferplus-small ferplus.parquet votes.parquet --unlabelled {out}",
    "finetune": "fer-vit predict new_photos --checkpoint {output}/model",
    "distill": "fer-vit fit --config ferplus_small --data.manifest {output}",
    "fit": "fer-vit validate --ckpt_path {checkpoint} --data.manifest {manifest}",
    "validate": "fer-vit visualize photos --checkpoint {checkpoint}",
    "test": "fer-vit export my-model --checkpoint {checkpoint}",
    "evaluate": "fer-vit visualize photos{same}",
    "predict": "fer-vit visualize {images}{same}",
    "live": "fer-vit predict clip.mp4 --summary people.csv",
    "visualize": "fer-vit faithfulness {images}{same}",
    "app": "fer-vit predict photos{same}",
    "faithfulness": "fer-vit visualize photos{same} --method METHOD",
    "configs": "fer-vit fit --config drawn --data.manifest faces.parquet",
    "models": "fer-vit predict photos --checkpoint ferplus-small",
    "export": "fer-vit predict photos --checkpoint {output}",
    "export .onnx": "fer-vit export --help",
    "export .pt2": "fer-vit export --help",
}
"""The command after each verb, or after a verb with one kind of data set or file, the one written or read."""

SAME = {"checkpoint": None, "face": "detect", "detector": "yunet"}
"""Options that the next command needs as well, and their defaults."""


def next_command(verb: str, given: Mapping[str, Any]) -> str:
    """Returns the command that usually follows one.

    Args:
        verb: One of those in `NEXT`.
        given: The values of its arguments and options by name.
    """
    kind = given.get("source") or Path(given.get("output", "")).suffix or Path(*given.get("images", [])[:1]).suffix
    lists = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    words = {name: shlex.join(map(str, values)) if len(values) <= 3 else "photos" for name, values in lists.items()}
    same = (f" --{name} {words[name]}" for name, usual in SAME.items() if given.get(name, usual) != usual)
    return NEXT.get(f"{verb} {kind}", NEXT[verb]).format(**words, same="".join(same))
