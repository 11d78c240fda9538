"""The scripts that are run by hand still accept their arguments,
and so do the commands that they run.
"""

import functools
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import ablation, finetune, machine, shipped_model
from tests.helpers.commands import parse, parse_fit

ARGUMENTS = {
    "ablation": "faces.parquet runs --rows regions --jobs 2 --rounds 1",
    "core": "photo.jpg --folders [small,big] --other old --exported [a.onnx] --rounds 1",
    "coverage": "--studies 10",
    "exporting": "faces.parquet --rounds 1",
    "finder": "--data data --plot_file finder.svg --count 9",
    "finetune": "runs --ferplus faces.parquet --start fold0.ckpt --fold 0/3 --photos [20] --runs 1",
    "landmarks": "landmarks.onnx faces.parquet more.parquet --epochs 1",
    "model_card": "faces.parquet model --write=true",
    "movements": "measure faces.parquet movements.npz ferplus-fairface",
    "opencv_versions": "--data data --opencv cv5 --count 2",
    "browser": "build/web --photos photos",
    "clips": "clip.mp4 --precision int8 --rounds 1",
    "predicting": "faces.parquet photos --count 9 --rounds 1",
    "second_look": "--data data --count 9",
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
    assert {path.stem for path in folder.glob("*.py")} - {"machine"} == set(ARGUMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ablation.MECHANISMS, ablation.REGIONS])
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
    for stage in stages:
        if stage.words[0] != "-m":
            parse(*stage.words)


def test_a_fine_tuning_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "write_manifest", Mock())
    monkeypatch.setattr("subprocess.run", call := Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        finetune.run(
            tmp_path / "run", Mock(), [f"--config={ablation.ROOT / 'configs/finetune.yaml'}"]
        )
    parse(*call.call_args.args[0][2:])
