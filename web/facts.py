"""Writes what the page in the browser knows of a model, and the files of its networks.

python -m web.facts FOLDER [MODEL]

MODEL is the folder of a model with model.onnx; the default is the default model. Columns, formats,
limits and the geometry of regions come from the package: the page has no list of its own.
"""

import json
import shutil
import sys
from datetime import date
from pathlib import Path
from typing import Any

from fer_vit.face import landmarks, yunet
from fer_vit.face.crop import MAX_CUT_SIDE, REGIONS
from fer_vit.face.detectors import (
    DEFAULT_DETECTOR,
    FRAGMENTED_SIDE,
    MAX_SIDE,
    MIN_SIDE,
    PHOTO_SCORE,
    SURE_SCORE,
)
from fer_vit.face.network import open_network
from fer_vit.faces import NO_FACE, OK, SEPARATOR, SMALL_SIZE, TURNED_ANGLE, WARNINGS
from fer_vit.fields import WITH_VIDEOS, face_fields
from fer_vit.heads import HEADS, WEAK, WEAK_MEANING, HeadOutputs, output_titles
from fer_vit.report.draw import expression_colour
from fer_vit.report.table import FORMULA
from fer_vit.version import __version__
from fer_vit.visualization.charts import drawn_region, is_bounded

ROOT = Path(__file__).parents[1]
DEFAULT_MODEL = ROOT / "fer_vit" / "weights" / "ferplus-fairface"
MODELS = ("model.int8.onnx", "model.onnx")  # the first is loaded first, the other on request


def head_facts(name: str, outputs: HeadOutputs, regions: list[str]) -> dict[str, Any]:
    """Returns how the raw outputs of a head become values, and how these are drawn."""
    head = HEADS[name]
    return {
        "name": name,
        "columns": [*outputs.columns],
        "scale": head.scale,
        "middle": head.middle,
        "step": head.step,
        "period": head.period,
        "title": head.title,
        "unit": head.unit,
        "low": head.low,
        "high": head.high,
        "bounded": is_bounded(head),
        "names": [*output_titles(outputs.names).values()],
        "marks": [WEAK if output.is_weak else "" for output in outputs],
        "meanings": [head.outputs[output] for output in outputs.names if head.outputs],
        "places": [drawn_region(output, regions) for output in outputs.names],
    }


def calibration(file: Path, stored: dict[str, Any]) -> dict[str, Any]:
    """Returns the temperature and the threshold of prediction sets at 90 % of a network.

    A network of 8 bits has its own in its metadata, in place of those in config.json.
    """
    metadata = open_network(file.read_bytes()).get_modelmeta().custom_metadata_map
    own = stored | json.loads(metadata["fer_vit"])
    return {"temperature": own["temperature"], "threshold": own["thresholds"]["90"][0]}


def facts(model: Path) -> dict[str, Any]:
    """Returns what the page knows of a model, of the networks that find faces, and of tables."""
    stored = json.loads((model / "config.json").read_text(encoding="utf-8"))
    regions = stored["config"]["regions"]
    outputs = HeadOutputs.of_names(stored["outputs"], model.name).with_r(stored.get("r", {}))
    heads = []
    for name, of_head in outputs.by_head.items():
        heads.append(head_facts(name, of_head, regions))
    fields = face_fields(stored["labels"], outputs, videos=True)
    return {
        "version": __version__,
        "built": date.today().isoformat(),
        "model": model.name,
        "models": [
            {"file": name} | calibration(model / name, stored)
            for name in MODELS
            if (model / name).is_file()
        ],
        "size": stored["config"]["img_size"],
        "template": stored["template"],
        "labels": stored["labels"],
        "colours": [expression_colour(label) for label in stored["labels"]],
        "regions": {name: REGIONS[name]._asdict() for name in regions},
        "heads": heads,
        "weak": WEAK_MEANING if outputs.weak_columns else "",
        "means": {mean.name: (mean.left.column, mean.right.column) for mean in outputs.means},
        "fields": [
            {
                "name": field.name,
                "type": field.type,
                "format": field.format,
                "video": field.when == WITH_VIDEOS,
            }
            for field in fields
        ],
        "formula": FORMULA.pattern,
        "statuses": {"ok": OK, "none": NO_FACE},
        "separator": SEPARATOR,
        "warnings": [*WARNINGS],
        "smallSize": SMALL_SIZE,
        "turnedAngle": TURNED_ANGLE,
        "cutSide": MAX_CUT_SIDE,
        "detector": {
            "name": DEFAULT_DETECTOR,
            "file": yunet.YUNET_NAME,
            "minSide": MIN_SIDE,
            "maxSide": MAX_SIDE,
            "fragmentedSide": FRAGMENTED_SIDE,
            "minScore": PHOTO_SCORE,
            "sureScore": SURE_SCORE,
            "suppressed": yunet.SUPPRESSED_IOU,
            "strides": yunet.STRIDES,
            "multiple": yunet.MULTIPLE,
        },
        "landmarks": {
            "file": landmarks.LANDMARKS_FILE.name,
            "side": landmarks.INPUT_SIDE,
            "share": landmarks.FACE_SHARE,
            "points": landmarks.POINTS_OUTPUT,
            "face": landmarks.FACE_OUTPUT,
            "minLogit": landmarks.MIN_FACE_LOGIT,
        },
    }


def write(folder: Path, model: Path = DEFAULT_MODEL) -> None:
    """Writes facts.json and the networks into a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    known = facts(model)
    for network in known["models"]:
        shutil.copyfile(model / network["file"], folder / network["file"])
    shutil.copyfile(landmarks.LANDMARKS_FILE, folder / landmarks.LANDMARKS_FILE.name)
    shutil.copyfile(landmarks.LANDMARKS_FILE.with_name("NOTICE"), folder / "NOTICE")
    free = yunet.yunet_path().read_bytes().replace(yunet.FIXED_SIZE, yunet.FREE_SIZE)
    (folder / yunet.YUNET_NAME).write_bytes(free)
    known["bytes"] = {path.name: path.stat().st_size for path in folder.glob("*.onnx")}
    (folder / "facts.json").write_text(json.dumps(known), encoding="utf-8")


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
