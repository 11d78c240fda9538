import json
import os
import re
import subprocess
import venv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
import torch
from skimage import data, io
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from fer_vit import load
from fer_vit.commands import export
from fer_vit.commands.models import head_names
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import write_manifest
from fer_vit.errors import FerVitError
from fer_vit.exporting.agreement import measure_agreement
from fer_vit.exporting.calibration import calibrate_model, labelled_batches
from fer_vit.exporting.formats import FORMATS, ExportOptions, write_model
from fer_vit.face.crop import DEFAULT_REGIONS
from fer_vit.heads import HEADS
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.sources import drawn as drawn_faces
from fer_vit.sources.movements import DRAWN_OUTPUTS
from fer_vit.store.average import average_networks
from fer_vit.store.hub import DEFAULT_MODEL, shipped_models
from fer_vit.store.model_folder import load_network, save_network
from fer_vit.train.task import FERTask
from tests.helpers.commands import fails, main, run
from tests.helpers.crops import as_tensors, probabilities
from tests.helpers.logits import labelled_logits
from tests.helpers.marks import slow

SMALL = RegionViTConfig(
    img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, regions=("mouth", "nose")
)


def example_inputs(net: RegionViT, faces: int) -> tuple[torch.Tensor, ...]:
    """Random faces (B, 3, S, S), boxes of their regions (B, R, 4), and which are visible."""
    torch.manual_seed(faces)
    regions = net.layout.num_regions
    size = net.config.img_size
    corner = torch.rand(faces, regions, 2) * size / 2
    boxes = torch.cat([corner, corner + size / 3], 2)
    return torch.rand(faces, 3, size, size), boxes, torch.rand(faces, regions) < 0.8


def run_onnx(path: Path, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    session = onnxruntime.InferenceSession(path)
    given = dict(zip(("image", "boxes", "valid"), inputs, strict=True))
    # A network without regions takes the image alone.
    values = {needed.name: given[needed.name].numpy() for needed in session.get_inputs()}
    return torch.from_numpy(session.run(["probabilities"], values)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {
            "stem": "conv",
            "region_source": "stem",
            "pos_embed": "sincos_2d",
            "pool": "avg",
            "in_chans": 1,
        },
        {"tokens": "patch"},
        {"pool": "query", "attention": "gaussian"},
    ],
)
def test_onnx_runtime_agrees_on_any_number_of_faces(
    change: dict[str, object], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = build_model(RegionViTConfig(**{**vars(SMALL), **change}), "abcde", temperature=1.3).eval()
    model = load(net, "cpu")
    path = tmp_path / "model.onnx"
    write_model(model, ExportOptions(path), overwrite=False)
    for faces in (1, 2, 9):
        inputs = example_inputs(net, faces)
        assert torch.allclose(run_onnx(path, inputs), probabilities(net, *inputs), atol=1e-4)
    if change != {"tokens": "patch"}:
        image, boxes, valid = example_inputs(net, 2)
        boxes[0] = float("nan")  # an absent region: NaN, and not valid
        valid[0] = False
        assert torch.allclose(
            run_onnx(tmp_path / "model.onnx", (image, boxes, valid)),
            probabilities(net, image, boxes, valid),
            atol=1e-4,
        )


OUTPUTS = {
    "movements": ["smileLeft", "smileRight"],
    "pose": ["yaw", "roll"],
    "affect": ["valence"],
}
NAMES = {"": "v1.2", ".onnx": "model.onnx", ".pt2": "model.pt2"}
"""A name that gives each format."""
READERS = {"": load_network, ".onnx": onnx.load, ".pt2": torch.export.load}
"""An independent reader of each format: it rejects the files of every other one."""
Export = Callable[[str], Path]


@pytest.fixture(scope="module")
def model_of_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny network with all heads, whose weights are random."""
    torch.manual_seed(0)
    config = replace(SMALL, depth=1, regions=DEFAULT_REGIONS)
    net = build_model(config, "abc", outputs=OUTPUTS, temperature=1.3)
    for value in net.heads.parameters():
        torch.nn.init.normal_(value, std=0.3)
    folder = tmp_path_factory.mktemp("heads") / "model"
    save_network(net, folder)
    return folder


@pytest.fixture(scope="module")
def exported(model_of_heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Exports the model by the command, each form once: to ONNX it takes seconds."""

    @cache
    def export(name: str) -> Path:
        output = tmp_path_factory.mktemp("exported") / "deep" / name
        run("export", output, "--checkpoint", model_of_heads)
        return output

    return export


@pytest.mark.parametrize("name", ["v1.2", *slow("model.onnx", "model.pt2")])
def test_every_form_of_a_model(name: str, exported: Export, model_of_heads: Path) -> None:
    output = exported(name)
    model = load(model_of_heads, "cpu")
    inputs = example_inputs(model.net, 4)
    if name == "v1.2":
        assert {file.name for file in output.iterdir()} == {
            "model.safetensors",
            "config.json",
            "README.md",
            "face_detection_yunet_2023mar.onnx",
            "landmarks.onnx",
            "NOTICE",
        }
        computed = probabilities(load(output, "cpu").net, *inputs)
    elif name == "model.onnx":
        computed = run_onnx(output, inputs)
        facts = onnxruntime.InferenceSession(output).get_modelmeta().custom_metadata_map["fer_vit"]
        regions = json.loads(facts)["regions"]
        assert list(regions) == list(DEFAULT_REGIONS)
        assert regions["mouth"] == {"anchors": [3, 4], "offset": [0.0, 0.05], "side": 0.95}
    else:
        files = {"fer_vit.json": ""}
        computed = torch.export.load(output, extra_files=files).module()(*inputs)[0]
        assert json.loads(files["fer_vit.json"])["labels"] == model.labels
    assert torch.allclose(computed, probabilities(model.net, *inputs), atol=1e-4)
    assert [path.name for path in output.parent.iterdir()] == [name]  # no incomplete file is left


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
def test_formats_are_written_as_what_they_are_named(suffix: str, exported: Export) -> None:
    path = exported(NAMES[suffix])
    READERS[suffix](path)
    if path.is_dir():
        assert {file.name for file in path.iterdir()} <= set(FORMATS[suffix].files)
    for other_suffix, read in READERS.items():
        if other_suffix != suffix:
            with pytest.raises(Exception):  # noqa: B017, PT011 - of three libraries
                read(path)


def test_the_place_of_an_export_is_printed(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run("export", tmp_path / "v1.2", "--checkpoint", checkpoint)
    assert str(tmp_path / "v1.2") in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_all_heads_are_outputs(name: str, exported: Export, model_of_heads: Path) -> None:
    path = exported(name)
    model = load(model_of_heads, "cpu")
    for faces in (1, 4):
        inputs = example_inputs(model.net, faces)
        if name == "model.onnx":
            session = onnxruntime.InferenceSession(path)
            names = [given.name for given in session.get_outputs()]
            assert names == ["probabilities", *OUTPUTS]
            fed = {
                given.name: value.numpy()
                for given, value in zip(session.get_inputs(), inputs, strict=True)
            }
            computed = [torch.from_numpy(values) for values in session.run(names, fed)]
            text = session.get_modelmeta().custom_metadata_map["fer_vit"]
        else:
            files = {"fer_vit.json": ""}
            computed = torch.export.load(path, extra_files=files).module()(*inputs)
            text = files["fer_vit.json"]
        raw = model.net(*inputs)
        expected = [
            probabilities(model.net, *inputs),
            raw["movements"].sigmoid(),
            HEADS["pose"].step * raw["pose"],
        ]
        expected.append(raw["affect"].tanh())
        for values, wanted in zip(computed, expected, strict=True):
            assert torch.allclose(values, wanted, atol=1e-3)
    assert json.loads(text)["heads"] == {
        "movements": {"columns": ["move_smileLeft", "move_smileRight"], "unit": ""},
        "pose": {"columns": ["yaw", "roll"], "unit": "degrees"},
        "affect": {"columns": ["valence"], "unit": ""},
    }


@pytest.mark.parametrize("name", ["model", "model.onnx"])
def test_an_output_is_kept_without_overwrite(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / name
    older = output if output.suffix else output / "config.json"
    older.parent.mkdir(exist_ok=True)
    older.write_text("older")
    assert str(output) in fails(capsys, "export", output, "--checkpoint", checkpoint)
    assert older.read_text() == "older"


def test_a_folder_is_replaced_with_overwrite(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "model"
    output.mkdir()
    (output / "config.json").write_text("older")
    main(["export", str(output), "--checkpoint", str(checkpoint), "--overwrite"])
    assert load(output, "cpu").labels == load(checkpoint, "cpu").labels


def test_cards_and_foreign_files_stay(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    main(["export", str(tmp_path / "copy")])
    card = (tmp_path / "copy" / "README.md").read_text()
    assert card == (shipped_models()[DEFAULT_MODEL] / "README.md").read_text()
    exported = tmp_path / "own"
    main(["export", str(exported), "--checkpoint", str(checkpoint)])
    assert "To be filled in" in (exported / "README.md").read_text()
    (exported / "README.md").write_text("mine")
    main(["export", str(exported), "--checkpoint", str(checkpoint), "--overwrite", "--half"])
    assert (exported / "README.md").read_text() == "mine"
    (exported / "notes.md").touch()
    assert "notes.md" in fails(capsys, "export", exported, "--overwrite")


def test_calibration_stores_the_r_that_evaluate_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    net = build_model(SMALL, EXPRESSIONS, outputs=DRAWN_OUTPUTS.plain)
    for value in net.heads.parameters():
        torch.nn.init.normal_(value, std=0.3)
    save_network(net, tmp_path / "model")
    reading = drawn_faces.read(tmp_path / "faces", count=140, size=48, heads=True)
    for index, row in enumerate(reading.rows):
        row.split = "train" if index < 10 else "val"
        if index < 50:  # targets for 90 faces are too few
            row.targets.pop("arousal", None)
    write_manifest(tmp_path / "faces.parquet", reading, "drawn")
    words = ["--checkpoint", tmp_path / "model"]
    run("export", tmp_path / "calibrated", *words, "--calibrate", tmp_path / "faces.parquet")
    assert "r of 1 of 2 outputs of affect: " in capsys.readouterr().out

    stored = json.loads((tmp_path / "calibrated/config.json").read_text())["r"]
    run("evaluate", tmp_path / "faces.parquet", *words, "--output", tmp_path / "measured")
    measured = json.loads((tmp_path / "measured/results.json").read_text())["heads"]
    assert {*stored["affect"]} == {"valence"}
    for head, of_head in stored.items():
        for name, r in of_head.items():
            assert r == pytest.approx(measured[head][name]["r"]["mean"], abs=6e-4)
    assert "affect (2, r " in head_names(tmp_path / "calibrated/config.json")
    assert "affect (2)" in head_names(tmp_path / "model/config.json")

    # another calibration without targets keeps them, an average does not
    again = load(tmp_path / "calibrated", "cpu")
    bare = drawn_faces.read(tmp_path / "bare", count=24, size=48)
    write_manifest(tmp_path / "bare.parquet", bare, "drawn")
    assert measure_agreement(again, Manifest.read(tmp_path / "bare.parquet")) == ""
    assert again.outputs.plain_r == stored
    assert average_networks([str(tmp_path / "calibrated")]).settings.outputs.plain_r == {}


def halves_by_hash(manifest: Path) -> tuple[np.ndarray, np.ndarray]:
    """Every second val face in the order of a hash is for the thresholds."""
    rows = Manifest.read(manifest).split("val")
    hashes = np.array([crc32(rows.image_bytes(row)) for row in range(len(rows))])
    order = hashes.argsort(kind="stable")
    return order[::2], order[1::2]


def best_temperature(logits: torch.Tensor, truth: torch.Tensor) -> float:
    """The temperature with the least loss, from a fine grid."""
    grid = torch.logspace(np.log10(0.05), np.log10(20), 6000, dtype=torch.float64)
    log_p = (logits.double() / grid[:, None, None]).log_softmax(-1)  # (6000, N, C)
    losses = -log_p[:, torch.arange(len(truth)), truth].mean(1)
    return grid[losses.argmin()].item()


def test_calibration_gives_sets(
    checkpoint: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["--checkpoint", str(checkpoint), "--calibrate", str(drawn / "faces.parquet")]
    main(["export", str(tmp_path / "model"), *words])
    model = load(tmp_path / "model", "cpu")
    printed = capsys.readouterr().out
    assert (
        f"Temperature: {model.net.settings.temperature:.3f}. Thresholds of prediction sets: "
        in printed
    )
    assert f"sets: {model.net.settings.thresholds['90'][0]:.3f}" in printed
    assert f"for 90%, {model.net.settings.thresholds['95'][0]:.3f} for 95%." in printed
    _, batches, targets = labelled_batches(model, Manifest.read(drawn / "faces.parquet"))
    read = [model.read(batch).probabilities for batch in batches]
    shares = torch.from_numpy(np.concatenate(read)).float()
    of_truth = shares[torch.arange(len(shares)), targets.argmax(1)]

    first, second = halves_by_hash(drawn / "faces.parquet")
    logits, _ = labelled_logits(model, drawn / "faces.parquet")
    temperature = best_temperature(logits[first], targets.argmax(1)[first])
    assert model.net.settings.temperature == pytest.approx(temperature, rel=2e-3)
    of_truth = of_truth[second]
    for coverage, least in model.net.settings.thresholds.items():
        reached = (of_truth >= least[0] - 1e-6).float().mean().item()
        assert int(coverage) / 100 <= reached <= int(coverage) / 100 + 2 / len(of_truth)
        assert len(least) == 1 + len(model.labels)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model.txt", "model.txt"),
        ("model.pt2 --half", "half"),
        ("model.pt2 --quantize=m.parquet", "quantize"),
        ("model --logit_adjust=0.5", "`--calibrate`"),
        ("model --faithfulness=gone.json", "gone.json"),
    ],
)
def test_options_that_do_not_fit(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    name, *options = words.split()
    assert message in fails(capsys, "export", tmp_path / name, *options)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "option"), [("model", "--faithfulness"), ("model.onnx", "--quantize")]
)
def test_a_wrong_file_ends_before_the_calibration(
    name: str,
    option: str,
    drawn: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    calibrated = []
    monkeypatch.setattr(export, "calibrate_model", lambda *_: calibrated.append(1))
    words = ["--checkpoint", checkpoint, "--calibrate", drawn / "faces.parquet"]
    (tmp_path / "folder").mkdir()
    for wrong in (tmp_path / "gone", tmp_path / "folder"):
        line = fails(capsys, "export", tmp_path / name, *words, option, wrong)
        assert wrong.name in line
    assert calibrated == []
    assert [*tmp_path.iterdir()] == [tmp_path / "folder"]


def test_rare_expressions_gain(drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Menon et al. 2021 by hand: half the logarithm of a label's share in training is
    subtracted from the logit of the label.
    """
    faces = Manifest.read(drawn / "faces.parquet")
    rows = zip(faces.table["label"].to_pylist(), faces.table["split"].to_pylist(), strict=True)
    rare = np.array([label in faces.labels[4:] and split == "train" for label, split in rows])
    faces.select(~rare | (np.arange(len(faces)) % 3 == 0)).write(tmp_path / "faces.parquet")
    net = build_model(RegionViTConfig(**{**vars(SMALL), "pool": "query"}), faces.labels)
    torch.nn.init.normal_(net.vit.head.weight, std=0.1)
    logits, _ = labelled_logits(load(net.eval(), "cpu"), tmp_path / "faces.parquet")
    net.vit.head.bias.data -= logits.mean(0)  # otherwise one expression is predicted for all
    save_network(net, tmp_path / "before")
    words = [
        "--checkpoint",
        str(tmp_path / "before"),
        "--calibrate",
        str(tmp_path / "faces.parquet"),
    ]
    main(["export", str(tmp_path / "now"), *words, "--logit_adjust", "0.5"])
    printed = capsys.readouterr().out
    outputs = {}
    for name in ("before", "now"):
        logits, target = labelled_logits(load(tmp_path / name, "cpu"), tmp_path / "faces.parquet")
        truth = target.argmax(1)
        guess = logits.argmax(1)
        accuracy = accuracy_score(truth, guess)
        uar = balanced_accuracy_score(truth, guess)
        outputs[name] = logits.numpy(), f"accuracy {accuracy:.1%}, UAR {uar:.1%}"
    assert (
        f"On {len(target)} val faces: {outputs['now'][1]}; before {outputs['before'][1]}."
        in printed
    )
    assert outputs["now"][1] != outputs["before"][1]
    half, _ = halves_by_hash(tmp_path / "faces.parquet")
    temperature = float(re.search(r"Temperature: ([\d.]+\d)", printed)[1])
    assert temperature == pytest.approx(best_temperature(logits[half], truth[half]), rel=2e-3)
    shares = Manifest.read(tmp_path / "faces.parquet").split("train").targets().mean(0)
    assert shares.max() > 2 * shares.min()
    assert np.allclose(outputs["now"][0] - outputs["before"][0], -0.5 * np.log(shares), atol=1e-5)
    before, now = (load(tmp_path / name, "cpu").net for name in ("before", "now"))
    assert torch.equal(before.vit.head.bias, now.vit.head.bias)
    assert now.settings.adjustment == 0.5
    assert now.settings.prior == pytest.approx(shares)
    main(["export", str(tmp_path / "again"), "--checkpoint", str(tmp_path / "now"), *words[2:]])
    assert load(tmp_path / "again").net.settings.adjustment == 0
    faces.select(np.array([label != "anger" for label in faces.column("label")])).write(
        tmp_path / "faces.parquet"
    )
    line = fails(capsys, "export", tmp_path / "calm", *words, "--logit_adjust", "0.5")
    assert "anger" in line
    assert not (tmp_path / "calm").exists()


def halves(checkpoint: Path, manifest: Path) -> list[int]:
    """How many faces calibrate the temperature, and how many the thresholds."""
    report = calibrate_model(load(checkpoint, "cpu"), Manifest.read(manifest), 0)
    numbers = re.search(r"temperature is from (\d+) faces, the thresholds from (\d+)", report)
    return [int(number) for number in numbers.groups()]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1], [1, 1]),
        ([3, 4, 5, 6], [9, 9]),
        ([30, 1, 1, 1], [3, 30]),
        ([1] * 9, [4, 5]),
        ([2] * 7 + [40], [14, 40]),
        ([7, 20, 6, 7], [20, 20]),
    ],
)
def test_no_person_is_in_both_halves_of_the_calibration(
    sizes: list[int], expected: list[int], drawn: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """The sizes of the halves are sums of the sizes of persons."""
    rows = Manifest.read(drawn / "faces.parquet")
    rows = rows.select(np.arange(len(rows)) < sum(sizes))
    persons = np.repeat([f"person {index}" for index in range(len(sizes))], sizes)
    save_val(rows, tmp_path / "m.parquet", person=persons.tolist())
    assert sorted(halves(checkpoint, tmp_path / "m.parquet")) == expected


def save_val(rows: Manifest, path: Path, **columns: list[str]) -> None:
    """Writes rows as val faces, with further columns."""
    place = rows.table.column_names.index("split")
    split = pa.array(["val"] * len(rows), rows.table.schema.field("split").type)
    table = rows.table.set_column(place, rows.table.schema.field("split"), split)
    for name, cells in columns.items():
        table = table.append_column(name, pa.array(cells))
    replace(rows, table=table).write(path)


def test_equal_files_are_in_one_half(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    rows = Manifest.read(drawn / "faces.parquet")
    copies = pa.concat_tables([rows.table.slice(0, 2), *[rows.table.slice(1, 1)] * 2])
    save_val(replace(rows, table=copies), tmp_path / "m.parquet")
    assert sorted(halves(checkpoint, tmp_path / "m.parquet")) == [1, 3]


def test_a_manifest_that_calibrates_is_read_once(
    drawn: Path, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Manifest.read(drawn / "faces.parquet")
    twice = pa.concat_tables([rows.table, rows.table.take([0])])
    replace(rows, table=twice).write(tmp_path / "faces.parquet")
    halves(checkpoint, tmp_path / "faces.parquet")
    (_,) = [record for record in caplog.records if "further row" in record.getMessage()]


def test_val_faces_of_one_person_are_refused_before_they_are_classified(
    drawn: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Manifest.read(drawn / "faces.parquet")
    table = rows.table.append_column("person", pa.array(["Ada"] * len(rows)))
    replace(rows, table=table).write(tmp_path / "faces.parquet")
    model = load(checkpoint, "cpu")
    monkeypatch.setattr(model.engine, "run", lambda *_: pytest.fail("faces are classified"))
    with pytest.raises(FerVitError, match="two or more persons"):
        calibrate_model(model, Manifest.read(tmp_path / "faces.parquet"), 0)


@pytest.mark.parametrize(
    ("options", "evened"),
    [({}, 0.0), ({"logit_adjust": 0.5}, 0.5), ({"logit_adjust": 1.0}, 1.0), (None, 1.0)],
    ids=["plain", "adjusted by half", "adjusted", "balanced"],
)
def test_a_prior_is_what_training_left(
    options: dict[str, float] | None, evened: float, drawn: Path, tmp_path: Path
) -> None:
    """A network expects even classes after training on evened classes: `prior="even"` keeps it."""
    faces = Manifest.read(drawn / "faces.parquet")
    rare = np.array([label == faces.labels[0] for label in faces.column("label")])
    faces = faces.select(~rare | (np.arange(len(faces)) % 3 == 0))
    faces.write(tmp_path / "faces.parquet")
    task = FERTask(SMALL, labels=list(faces.labels), **(options or {}))
    checkpoint = {
        "state_dict": task.state_dict(),
        "hyper_parameters": dict(task.hparams),
        "pytorch-lightning_version": "2.6.0",
        "balanced": options is None,
    }
    torch.save(checkpoint, tmp_path / "a.ckpt")
    model = load(tmp_path / "a.ckpt", "cpu")
    assert model.net.settings.evened == evened
    calibrate_model(model, Manifest.read(tmp_path / "faces.parquet"), 0)

    shares = faces.split("train").targets().sum(0)
    expected = shares ** (1 - evened)
    assert model.net.settings.prior == pytest.approx(expected / expected.sum(), rel=1e-5)
    save_network(model.net, tmp_path / "model")
    assert load_network(tmp_path / "model").settings == model.net.settings


@pytest.mark.slow
def test_onnx_in_8_bits(checkpoint: Path, drawn: Path, tmp_path: Path) -> None:
    words = ["--checkpoint", str(checkpoint), "--quantize", str(drawn / "faces.parquet")]
    main(["export", str(tmp_path / "small.onnx"), *words])
    main(["export", str(tmp_path / "whole.onnx"), *words[:2]])
    assert (tmp_path / "small.onnx").stat().st_size < (tmp_path / "whole.onnx").stat().st_size
    model = load(checkpoint, "cpu")
    part = next(labelled_batches(model, Manifest.read(drawn / "faces.parquet"), "train").batches)
    small, whole = (
        run_onnx(tmp_path / f"{name}.onnx", as_tensors(part)) for name in ("small", "whole")
    )
    nodes = onnx.load(tmp_path / "small.onnx").graph.node
    eight = {node.input[0] for node in nodes if node.op_type == "QuantizeLinear"}
    sums = {node.input[0] for node in nodes if node.op_type == "LayerNormalization"}
    assert eight
    assert sums
    assert not eight & sums  # sums of products are not in 8 bits
    difference = (small - whole).abs()
    assert 0 < difference.max() < 0.05  # with 8 bits, the result differs slightly
    assert json.loads(
        onnxruntime.InferenceSession(tmp_path / "small.onnx")
        .get_modelmeta()
        .custom_metadata_map["fer_vit"]
    )


@pytest.mark.slow
def test_a_photo_without_fer_vit_and_torch(tmp_path: Path) -> None:
    """The script of docs/how-to/export.md,
    in an environment that holds only its three packages.
    """
    root = Path(__file__).parents[2]
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", symlinks=True, with_pip=True)
    # pip may use the network
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words: object) -> subprocess.CompletedProcess[str]:
        command = [str(word) for word in (python, *words)]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )

    packages = ("onnxruntime", "opencv-python-headless", "numpy")
    done = call("-m", "pip", "install", "--quiet", "-c", root / "constraints.txt", *packages)
    if done.returncode:
        pytest.skip(f"pip cannot install the packages: {done.stderr.splitlines()[-1]}")
    assert all(call("-c", f"import {name}").returncode for name in ("torch", "fer_vit"))

    model = "ferplus-fairface"  # has the most outputs of all shipped models
    main(["export", str(tmp_path / "model.onnx"), "--checkpoint", model])
    main(["export", str(tmp_path / "networks")])
    face = data.astronaut()[:300, 80:400]
    io.imsave(tmp_path / "photo.png", np.hstack([face, face[:, ::-1] // 2]))
    done = call(
        root / "docs/how-to/photo_to_probabilities.py",
        "photo.png",
        "model.onnx",
        "networks",
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    expected = load(model, device="cpu").predict(tmp_path / "photo.png")
    assert len(rows) == len(expected) == 2
    for face, row in zip(expected, rows, strict=True):
        assert row["box"] == pytest.approx(face.box.tolist(), abs=0.01)
        assert row.pop("probabilities") == pytest.approx(face.probabilities, abs=1e-4)
        del row["box"]
        assert {"yaw", "pitch", "roll"} <= set(row)
        for name, value in face.outputs.items():
            tolerance = 0.1 if name in ("yaw", "pitch", "roll") else 0.02  # degrees; intensities
            assert row[name] == pytest.approx(value, abs=tolerance), name
        assert len(row) > 40
