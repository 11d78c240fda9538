"""The scripts that are run by hand still accept their arguments, and so do the commands that they run."""

import functools
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from benchmarks import ablation, detector, detector_data, finetune, machine, shipped_model
from fer_vit.face.detect import BUILTIN, FaceDetector
from fer_vit.sources.drawn import draw_face
from tests.helpers.commands import parse, parse_fit

ARGUMENTS = {
    "ablation": "faces.parquet runs --rows regions --jobs 2 --rounds 1",
    "detector": "detector.onnx --faces faces --backgrounds backgrounds --cache runs --clips clips --steps 2",
    "exporting": "faces.parquet --rounds 1",
    "finetune": "runs --ferplus faces.parquet --start fold0.ckpt --fold 0/3 --photos [20] --runs 1",
    "landmarks": "landmarks.onnx faces.parquet more.parquet --epochs 1",
    "model_card": "faces.parquet model --write=true",
    "predicting": "faces.parquet photos --count 9 --rounds 1",
    "training": "--rounds 1 --compiled=true",
    "shipped_model": "ferplus.zip fairface.zip runs --seeds 2",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_parses_its_arguments(name: str) -> None:
    main = import_module(f"benchmarks.{name}").main
    assert machine.run_main(
        functools.wraps(main)(lambda **values: len(values)), ARGUMENTS[name].split()
    )


def test_every_script_is_tested() -> None:
    folder = Path(ablation.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"machine", "detector_data"} == set(
        ARGUMENTS
    )


@pytest.mark.parametrize(
    "rows", [ablation.MECHANISMS, ablation.REGIONS], ids=["mechanisms", "regions"]
)
def test_every_row_is_a_configuration_of_its_own(rows: dict[str, list[str]]) -> None:
    settings = {
        str(parse_fit(f"--config={ablation.CONFIG}", *(f"--{w}" for w in row)))
        for row in rows.values()
    }
    assert len(settings) == len({ablation.slug(name) for name in rows}) == len(rows)


def test_the_stages_of_the_shipped_model_are_commands(tmp_path: Path) -> None:
    stages = list(
        shipped_model.stages(Path("ferplus.zip"), Path("fairface.zip"), tmp_path, seeds=2)
    )
    assert (
        len({stage.product for stage in stages})
        == len({stage.name for stage in stages})
        == len(stages)
    )
    for words in (stage.words for stage in stages if stage.words[0] != "-m"):
        parse(*words)


def test_a_fine_tuning_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "write_manifest", Mock())
    monkeypatch.setattr("subprocess.run", call := Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        finetune.run(
            tmp_path / "run", Mock(), [f"--config={ablation.ROOT / 'configs/finetune.yaml'}"]
        )
    parse(*call.call_args.args[0][2:])


@pytest.mark.slow
def test_training_resumes_and_is_scored(
    yunet_named: None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    crops, points = zip(
        *[draw_face("fear", seed, detector_data.CROP, colour=True) for seed in range(24)],
        strict=True,
    )
    np.save(tmp_path / "crops.npy", crops)
    np.save(tmp_path / "points.npy", [np.vstack([[(20, 10), (92, 100)], five]) for five in points])
    (tmp_path / "plain").mkdir()
    for place in range(3):
        cv2.imwrite(
            str(tmp_path / "plain" / f"{place}.jpg"), np.full((120, 90, 3), 80 * place, np.uint8)
        )
    folders = [
        f"--faces={tmp_path}",
        f"--backgrounds={tmp_path / 'plain'}",
        f"--cache={tmp_path}",
        "--batch=2",
    ]
    path = tmp_path / "d.onnx"
    for steps in (2, 3):
        path.unlink(missing_ok=True)
        machine.run_main(detector.main, [str(path), *folders, f"--steps={steps}", "--photos=1"])
    printed = capsys.readouterr().out
    assert printed.count("step 0: loss") == 1
    assert printed.count("composed, faces >= 24 px: YuNet") == 2
    assert FaceDetector(path, 0.99)(crops[0]) == []
    assert sum(parameter.numel() for parameter in detector.Network().parameters()) < 300_000
    assert BUILTIN.stat().st_size < 2**20


def test_a_turned_face_keeps_its_landmarks_in_its_box() -> None:
    points = np.array(
        [(20, 10), (92, 100), (40, 45), (72, 45), (56, 65), (44, 82), (68, 82)], float
    )
    to_canvas = detector_data.matrix(points, 60, np.pi / 2, np.array([100.0, 90]))
    mapped = detector_data.transform(points, to_canvas)
    np.testing.assert_allclose(mapped[:2].mean(0), (100, 90))
    np.testing.assert_allclose(
        mapped[1] - mapped[0], (60 * np.sqrt(90 / 72), 60 * np.sqrt(72 / 90))
    )
    labels, faces = detector.assign(mapped[None])
    centres = detector.CORNERS[labels == 1] + detector.STRIDE[labels == 1, None] / 2
    assert np.abs(centres - (100, 90)).max() < 20
    np.testing.assert_allclose(
        faces[labels == 1], np.broadcast_to(mapped, faces[labels == 1].shape), atol=1e-4
    )
