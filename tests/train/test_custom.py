"""Tasks of users: `--model my_module.MyTask` in fit, evaluate, visualize and predict."""

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError, ModelError
from fer_vit.model.config import RegionViTConfig
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.train.custom import load_custom
from fer_vit.train.module import DEFAULT_NETWORK
from tests.helpers.commands import CROPS, TINY, exit_code, fails, read, run

MODULE = """
from dataclasses import dataclass
from itertools import count

import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, IterableDataset
from fer_vit import FaceDataModule, FERTask
from fer_vit.data.dataset import FaceDataset, collate
from fer_vit.data.manifest import Manifest
from fer_vit.model.config import RegionViTConfig
from fer_vit.train.pretraining import MaskedPretraining


class FocalTask(FERTask):
    def __init__(self, gamma: float = 2.0, **options):
        super().__init__(**options)
        self.gamma = gamma

    def loss(self, logits, target):
        log_p = logits.log_softmax(-1)
        return -(target * (1 - log_p.exp()) ** self.gamma * log_p).sum(-1).mean()


class WideHeadTask(FERTask):
    def __init__(self, hidden: int = 16, **options):
        super().__init__(**options)
        width = self.net.vit.embed_dim
        self.net.vit.head = torch.nn.Sequential(
            torch.nn.Linear(width, hidden),
            torch.nn.GELU(),
            torch.nn.Linear(hidden, len(self.labels)),
        )


class Narrow(FERTask):
    def __init__(self, labels: list[str], lr: float = 1e-3):
        super().__init__(labels=labels, lr=lr)


class SmallNetwork(FERTask):
    def __init__(self, network: RegionViTConfig = RegionViTConfig(img_size=40), **options):
        super().__init__(network, **options)


@dataclass(frozen=True)
class WiderConfig(RegionViTConfig):
    width: int = 3


class WiderNetwork(FERTask):
    def __init__(self, network: WiderConfig = WiderConfig(), **options):
        super().__init__(**options)


class FixedNetwork(FERTask):
    def __init__(self, **options):
        super().__init__(network=RegionViTConfig(img_size=40), **options)


class OtherNetwork(FERTask):
    def __init__(self, **options):
        super().__init__(**options)
        self.net = torch.nn.Linear(1, 1)


class Pretraining(MaskedPretraining):
    pass


class MyData(FaceDataModule):
    def __init__(self, manifest: str, darker: float = 0.0, **options):
        super().__init__(manifest, **options)
        self.darker = darker

    def cropping(self):
        return Darker(super().cropping(), self.darker)


class Darker:
    def __init__(self, usual, share):
        self.usual = usual
        self.share = share

    def __call__(self, image, landmarks, spec, seed):
        cropped = self.usual(image, landmarks, spec, seed)
        pixels = (cropped.image * (1 - self.share)).astype(cropped.image.dtype)
        return cropped._replace(image=pixels)


class Stream(FaceDataModule):
    def __init__(self, manifest: str, place: str, **options):
        super().__init__(manifest, **options)
        self.place = place

    def train_dataloader(self):
        faces = FaceDataset(Manifest.read(self.place).split("train"), self.spec, self.cropping())
        return DataLoader(Endless(faces), self.batch_size, collate_fn=collate)


class Endless(IterableDataset):
    def __init__(self, faces):
        self.faces = faces

    def __iter__(self):
        return (self.faces[row % len(self.faces)] for row in count())


class NoSpec(FaceDataModule):
    def __init__(self, manifest: str):
        super().__init__(manifest)


class NoteEpoch(Callback):
    def __init__(self, word: str = "epoch"):
        self.word = word

    def state_dict(self):
        return {"word": self.word}


class Broken(FERTask):
    def __init__(self, **options):
        super().__init__(**options)
        raise KeyError("mine")
"""
"""A user's module in the current folder."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module in the current folder."""
    (tmp_path / "my_tasks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)
    return "my_tasks"


Train = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of the file."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def train(module: str, drawn: Path, runs: Path) -> Train:
    """Trains a class of the module for two steps, once; returns the best checkpoint."""

    def train_class(name: str, *words: str) -> Path:
        folder = runs / "".join((name, *words)).replace("/", "_")
        if folder.exists():
            return next(folder.rglob("best.ckpt"))
        run(
            "fit",
            *TINY,
            f"--data.manifest={drawn / 'faces.parquet'}",
            f"--trainer.logger.init_args.save_dir={folder}",
            f"--model={module}.{name}",
            *words,
        )
        (best,) = folder.rglob("best.ckpt")
        return best

    return train_class


@pytest.fixture
def focal(train: Train, tmp_path: Path) -> Path:
    """A checkpoint of FocalTask, trained with a callback of the current folder."""
    entry = "{class_path: my_tasks.NoteEpoch, init_args: {word: ended}}"
    (tmp_path / "own.yaml").write_text(f"trainer: {{callbacks: [{entry}]}}\n")
    return train("FocalTask", "--config=own.yaml", "--model.gamma=3", "--model.lr=0.01")


def test_fit_trains_a_class_with_its_own_and_inherited_options(focal: Path) -> None:
    checkpoint = load_checkpoint(focal)
    assert checkpoint["callbacks"]["NoteEpoch"] == {"word": "ended"}
    hyper = checkpoint["hyper_parameters"]
    assert hyper["gamma"] == 3.0
    assert hyper["lr"] == 0.01
    assert checkpoint["task_class"] == "my_tasks.FocalTask"


@pytest.mark.slow
def test_a_run_resumes_only_with_its_class(
    focal: Path, drawn: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}", f"--ckpt_path={focal}"]
    words.append("--trainer.max_epochs=2")
    assert "my_tasks.FocalTask" in fails(capsys, "fit", *words)
    assert "my_tasks.FocalTask" in fails(capsys, "validate", *words[:-1])
    run("fit", *words, "--model", "my_tasks.FocalTask")
    run("validate", *words[:-1], "--model", "my_tasks.FocalTask")
    run("validate", *words[:-1], "--model", "fer_vit.FERTask")
    assert "gamma" in capsys.readouterr().out


def test_the_network_of_a_class_predicts(
    train: Train, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    best = train("WideHeadTask", "--model.hidden=24")
    net = load_custom(best, "my_tasks.WideHeadTask")
    weights = load_checkpoint(best)["state_dict"]
    assert all(
        torch.equal(value, weights[f"net.{name}"]) for name, value in net.state_dict().items()
    )
    photos = sorted((drawn / "faces").rglob("*.png"))[:3]
    expected = load(net, "cpu").predict(photos, face="crop", detector="none")

    words = ["--checkpoint", best, "--model", "my_tasks.WideHeadTask"]
    run("predict", *photos, *CROPS, *words, "--output", tmp_path / "faces.csv")
    for row, face in zip(read(tmp_path / "faces.csv"), expected, strict=True):
        assert row["label"] == face.label
        assert row["confidence"] == pytest.approx(face.confidence, abs=1e-4)
        assert row["model"] == str(best)
    run("evaluate", drawn / "faces.parquet", *words, "--output", tmp_path / "evaluation")
    assert (tmp_path / "evaluation" / "index.html").exists()
    run("visualize", photos[0], *CROPS, *words, "--output", tmp_path / "report")
    assert (tmp_path / "report" / "index.html").exists()

    words = ["--checkpoint", best, "--output", tmp_path / "other"]
    line = fails(capsys, "evaluate", drawn / "faces.parquet", *words)
    assert str(best) in line


@pytest.mark.slow
def test_fit_trains_with_a_data_module_and_resumes_with_it(
    train: Train, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    best = train("FocalTask", "--data=my_tasks.MyData", "--data.darker=1", "--data.balanced=true")
    content = load_checkpoint(best)
    assert content["data_class"] == "my_tasks.MyData"
    assert load(best).net.settings.evened == 1.0
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}", f"--ckpt_path={best}"]
    words += ["--model=my_tasks.FocalTask", "--trainer.max_epochs=2"]
    words.append(f"--trainer.logger.init_args.save_dir={tmp_path}")
    assert "`--data my_tasks.MyData`" in fails(capsys, "fit", *words)
    run("fit", *words, "--data=my_tasks.MyData")
    last = load_checkpoint(next(tmp_path.rglob("last.ckpt")))
    assert last["epoch"] == 1
    run("validate", *words[:-2])


def test_a_data_module_streams_faces_that_are_not_in_the_manifest(
    module: str, drawn: Path, tmp_path: Path
) -> None:
    faces = Manifest.read(drawn / "faces.parquet")
    faces.split("val").write(tmp_path / "val.parquet")
    words = [word for word in TINY if "limit_train" not in word]
    words += [f"--data.manifest={tmp_path / 'val.parquet'}", "--data=my_tasks.Stream"]
    words += [f"--data.place={drawn / 'faces.parquet'}", "--trainer.max_steps=3"]
    run("fit", *words, f"--trainer.logger.init_args.save_dir={tmp_path}")
    (last,) = tmp_path.rglob("last.ckpt")
    assert load_checkpoint(last)["global_step"] == 3


def test_data_modules_that_do_not_fit_are_named(
    module: str, drawn: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}"]
    assert "`spec` of FaceDataModule" in fails(capsys, "fit", *words, "--data=my_tasks.NoSpec")
    assert "MyData" in fails(capsys, "fit", *words, "--data=my_tasks.MyDat")


@pytest.mark.slow
def test_repeat_trains_with_a_data_module(module: str, drawn: Path, tmp_path: Path) -> None:
    words = [word for word in TINY if "progress" not in word]
    run(
        "repeat",
        drawn / "faces.parquet",
        *("--config", "drawn", "--seeds", 1, "--output", tmp_path / "r"),
        *("--data", "my_tasks.MyData", "--data.darker=0.5", *words),
    )
    (last,) = (tmp_path / "r").rglob("last.ckpt")
    assert load_checkpoint(last)["data_class"] == "my_tasks.MyData"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--trainer.callbacks+=my_task.NoteEpoch"], ["No module named", "my_task.NoteEpoch"]),
        (["--trainer.callbacks+=my_tasks.Print"], ["my_tasks.Print"]),
        (["--trainer.callbacks+=my_tasks.MyData"], ["my_module.MyClass", "my_tasks.MyData"]),
        (
            ["--trainer.callbacks+=my_tasks.NoteEpoch", "--trainer.callbacks.wort=x"],
            ["my_tasks.NoteEpoch", "wort"],
        ),
        (["--trainer.logger=my_tasks.Nothing"], ["my_tasks.Nothing"]),
    ],
)
def test_the_error_about_a_class_is_true(
    words: list[str], parts: list[str], module: str, drawn: Path, capsys: pytest.CaptureFixture
) -> None:
    line = fails(capsys, "fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}", *words)
    for part in parts:
        assert part in line
    assert "a list" not in line


def test_without_the_class_a_line_names_it(focal: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(focal).labels == load(load_custom(focal, "my_tasks.FocalTask")).labels
    assert "my_tasks.FocalTask" in caplog.text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FocalTask", "MODULE.CLASS"),
        ("", "MODULE.CLASS"),
        ("my_tasks.Focal", "FocalTask"),
        ("my_tasks.torch", "my_tasks.torch"),
        ("no_module_of_this_name.Task", "no_module_of_this_name"),
        ("my_tasks.sub.Task", "my_tasks"),
        ("..Task", "Task"),
        ("os.system", "os.system"),
        ("torch.nn.Linear", "torch.nn.Linear"),
        ("fer_vit.train.module.RegionViTModule", "RegionViTModule"),
    ],
)
def test_what_is_no_task_is_refused(module: str, name: str, reason: str) -> None:
    with pytest.raises(FerVitError, match=reason):
        load_custom("none.ckpt", name)


def test_the_error_of_a_module_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_broken.py").write_text("1 / 0\n")
    with pytest.raises(FerVitError, match=r"my_broken.*ZeroDivisionError"):
        load_custom("none.ckpt", "my_broken.Task")
    (tmp_path / "my_syntax.py").write_text("class Task(:\n")
    with pytest.raises(FerVitError, match=r"my_syntax.*SyntaxError"):
        load_custom("none.ckpt", "my_syntax.Task")


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("my_pack.sub.Task", True),
        ("my_pack.sub.part.Task", True),
        ("my_other.sub.Task", True),
        # modules that exist, and import another one that does not
        ("my_pack.needs.Task", False),
        ("my_pack.similar.Task", False),
    ],
)
def test_a_missing_module_is_no_mistake_of_a_module(
    name: str, missing: bool, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_pack").mkdir()
    (tmp_path / "my_pack" / "__init__.py").write_text("")
    (tmp_path / "my_pack" / "needs.py").write_text("import no_module_of_this_name\n")
    (tmp_path / "my_pack" / "similar.py").write_text("import my_pack.sim\n")
    for imported in ("my_pack", "my_pack.needs", "my_pack.similar"):
        monkeypatch.delitem(sys.modules, imported, raising=False)
    with pytest.raises(FerVitError) as caught:
        load_custom("none.ckpt", name)
    assert ("PYTHONPATH" in str(caught.value)) == missing


def test_fit_refuses_classes_and_configs_that_do_not_fit(
    module: str, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}"]
    assert "`network`" in fails(capsys, *words[:1], *words[6:], "--model=my_tasks.Narrow")
    line = fails(capsys, *words[:1], *words[6:], "--model=my_tasks.FixedNetwork")
    assert "`network`" in line
    assert "KeyError" in fails(capsys, *words, "--model=my_tasks.Broken")
    line = fails(capsys, *words, "--model=my_tasks.FocalTask", "--task=pretraining")
    assert "my_tasks.FocalTask" in line
    line = fails(capsys, *words, "--model=my_tasks.FocalTask", "--model.gama=1")
    assert "--model.gamma" in line
    config = tmp_path / "class_path.yaml"
    config.write_text("model: {class_path: my_tasks.FocalTask, init_args: {gamma: 1}}\n")
    assert "--model my_tasks.FocalTask" in fails(capsys, *words, f"--config={config}")


@pytest.mark.parametrize(
    ("name", "size", "regions"),
    [
        ("fer_vit.FERTask", DEFAULT_NETWORK.img_size, DEFAULT_NETWORK.regions),
        ("my_tasks.FocalTask", DEFAULT_NETWORK.img_size, DEFAULT_NETWORK.regions),
        ("my_tasks.SmallNetwork", 40, ()),
        ("my_tasks.Pretraining", DEFAULT_NETWORK.img_size, DEFAULT_NETWORK.regions),
    ],
)
def test_the_options_of_the_network_are_listed_with_the_defaults_of_a_class(
    name: str,
    size: int,
    regions: tuple[str, ...],
    module: str,
    capsys: pytest.CaptureFixture,
) -> None:
    network = printed_network(capsys, f"--model={name}")
    assert network["img_size"] == size
    assert network["regions"] == [*regions]
    assert {field.name for field in fields(RegionViTConfig)} <= network.keys()


def printed_network(capsys: pytest.CaptureFixture, *options: str) -> dict[str, object]:
    """The settings of the network that `fit` prints."""
    assert exit_code("fit", "--data.manifest=faces.parquet", *options, "--print_config") == 0
    config = yaml.safe_load(capsys.readouterr().out)
    return config["model"]["network"]


def test_the_network_of_a_class_may_have_further_settings(
    module: str, capsys: pytest.CaptureFixture
) -> None:
    options = ("--model.network.regions=[nose]", f"--model={module}.WiderNetwork")
    assert printed_network(capsys, *options)["width"] == 3


def test_load_custom_refuses_checkpoints_of_other_classes(
    train: Train, checkpoint: Path, tmp_path: Path
) -> None:
    best = train("WideHeadTask")
    with pytest.raises(ModelError, match="hidden"):
        load_custom(best, "fer_vit.FERTask")
    with pytest.raises(ModelError, match=str(checkpoint)):
        load_custom(checkpoint, "my_tasks.WideHeadTask")
    with pytest.raises(ModelError, match="Linear"):
        load_custom(checkpoint, "my_tasks.OtherNetwork")
    with pytest.raises(ModelError):
        load_custom(tmp_path / "none.ckpt", "my_tasks.WideHeadTask")


def test_load_custom_refuses_hostile_sizes(focal: Path, tmp_path: Path) -> None:
    content = torch.load(focal, weights_only=True)
    content["hyper_parameters"]["network"] |= {"embed_dim": 16384, "depth": 40}
    torch.save(content, tmp_path / "huge.ckpt")
    with pytest.raises(ModelError, match="weights"):
        load_custom(tmp_path / "huge.ckpt", "my_tasks.FocalTask")


def test_a_checkpoint_never_names_what_is_imported(focal: Path, tmp_path: Path) -> None:
    content = torch.load(focal, weights_only=True)
    (tmp_path / "my_trap.py").write_text("raise SystemExit('imported')\n")
    content["task_class"] = "my_trap.Task"
    content["hyper_parameters"] |= {"_class_path": "my_trap.Task", "_instantiator": "my_trap.build"}
    torch.save(content, tmp_path / "trap.ckpt")
    load(tmp_path / "trap.ckpt")
    load_custom(tmp_path / "trap.ckpt", "my_tasks.FocalTask")
    assert "my_trap" not in sys.modules


def test_load_custom_reads_no_other_model(focal: Path, tmp_path: Path) -> None:
    content = torch.load(focal, weights_only=True)
    content["hyper_parameters"] |= {"init": "none", "teachers": ["none.ckpt"], "_name": "x"}
    torch.save(content, tmp_path / "focal.ckpt")
    net = load_custom(tmp_path / "focal.ckpt", "my_tasks.FocalTask")
    assert net.settings.labels == content["hyper_parameters"]["labels"]


@pytest.mark.slow
def test_pretraining_of_a_class(train: Train, drawn: Path, tmp_path: Path) -> None:
    best = train("Pretraining")
    assert load_checkpoint(best)["task_class"] == "my_tasks.Pretraining"
    with pytest.raises(ModelError, match="no expressions"):
        load_custom(best, "my_tasks.Pretraining")
