from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from shutil import copytree

import boto3
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from litdata.utilities.env import _DistributedEnv
from moto.server import ThreadedMotoServer

from fer_vit.data.manifest import Manifest
from fer_vit.data.transforms import AugmentConfig
from fer_vit.errors import FerVitError
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.task import FERTask
from tests.helpers.commands import TINY, main

FIT = ["fit", *TINY[:6], *TINY[7:8], *TINY[-2:], "--trainer.max_epochs=2"]
FACES = 16
"""In a batch of these."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of uneven size: 5 of 113 drawn training faces, and the two other splits."""
    folder = tmp_path_factory.mktemp("sharded") / "shards"
    words = ["--count=160", "--size=48", "--detector=none", "--shards=5", "--workers=1"]
    main(["prepare", "drawn", str(folder.parent / "faces"), str(folder), *words])
    return folder


def module(place: str | Path, **options: object) -> FaceDataModule:
    return FaceDataModule(place, **{"batch_size": 4, "num_workers": 0, "size": 32, **options})  # type: ignore[arg-type]


def rows(loader: object) -> list[list[int]]:
    return [batch.row.tolist() for batch in loader]  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_row_comes_once_an_epoch(
    shards: Path, monkeypatch: pytest.MonkeyPatch, processes: int, workers: int
) -> None:
    total = len(Manifest.read(shards, ["train"]))
    epochs: list[list[int]] = [[], []]
    lengths: set[int] = set()
    for rank in range(processes):
        env = _DistributedEnv(processes, rank, 1)
        monkeypatch.setattr(_DistributedEnv, "detect", lambda env=env: env)
        loader = module(shards, num_workers=workers).train_dataloader()
        for epoch in epochs:
            batches = rows(loader)
            lengths.add(len(batches))
            assert len(batches) == len(loader)
            assert {len(batch) for batch in batches} == {4}
            epoch += chain.from_iterable(batches)
    assert len(lengths) == 1  # another number of batches would let processes wait for one another
    for epoch in epochs:
        assert len(epoch) > total - 4 * processes * max(workers, 1)
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(total))
    assert epochs[0] != epochs[1]


def test_the_seed_gives_the_order(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        orders.append(rows(module(shards).train_dataloader()))
    assert orders[0] == orders[1] != orders[2]


def test_a_streamed_sample_is_the_manifests(shards: Path) -> None:
    still = dict.fromkeys(("mirror", "degrees", "scale", "shift", "brightness", "contrast", "erase"), 0.0)
    data = module(shards, augment=AugmentConfig(**still))
    whole = Manifest.read(shards)
    data.manifest = whole
    dataset = data.dataset("train")
    plain = {sample.path: sample for sample in (dataset[row] for row in range(len(dataset)))}
    seen = 0
    for batch in data.train_dataloader():
        for place, path in enumerate(batch.path):
            sample = plain[path]
            assert np.array_equal(batch.image[place].permute(1, 2, 0).numpy(), sample.image)
            assert np.array_equal(batch.boxes[place].numpy(), sample.boxes)
            assert np.array_equal(batch.target[place].numpy(), sample.target)
            assert batch.row[place] == sample.row
            seen += 1
    assert seen == len(dataset) // 4 * 4


def test_a_streamed_face_is_changed_otherwise_in_every_epoch(shards: Path) -> None:
    loader = module(shards).train_dataloader()
    epochs = [
        {path: image for batch in loader for path, image in zip(batch.path, batch.image, strict=True)} for _ in range(2)
    ]
    both = epochs[0].keys() & epochs[1].keys()
    assert len(both) > 5
    assert not any(torch.equal(epochs[0][path], epochs[1][path]) for path in both)


def test_class_counts_are_the_manifests(shards: Path) -> None:
    labels = Manifest.read(shards, ["train"]).table["label"].to_pylist()
    data = module(shards)
    assert data.class_counts().tolist() == [labels.count(name) for name in data.labels]


def test_what_cannot_be_streamed_is_said(shards: Path) -> None:
    with pytest.raises(FerVitError, match=r"use model\.class_weight: balanced"):
        module(shards, balanced=True)
    with pytest.raises(FerVitError, match=r"fewer training rows than one batch of 200 "):
        module(shards, batch_size=200, num_workers=2).train_dataloader()


def test_a_broken_image_is_named_with_its_shard(shards: Path, tmp_path: Path) -> None:
    folder = Path(copytree(shards, tmp_path / "shards"))
    path = folder / "train-00003-of-00005.parquet"
    table, before = pq.read_table(path), path.stat().st_size
    broken = [{"bytes": b"no image", "path": "broken"}] * len(table)
    pq.write_table(table.set_column(0, table.schema.field(0), [broken]), path)
    index = folder / "index.json"
    index.write_text(index.read_text().replace(f'"chunk_bytes": {before}', f'"chunk_bytes": {path.stat().st_size}'))
    with pytest.raises(FerVitError, match=r"train-00003-of-00005.parquet, image broken: "):
        rows(module(folder).train_dataloader())


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_that_are_cut_short_differ(shards: Path, workers: int) -> None:
    loader = module(shards, num_workers=workers).train_dataloader()
    epochs = [rows(islice(loader, 3)) for _ in range(3)]
    assert all(one != other for one, other in zip(epochs, epochs[1:] + epochs[:1], strict=True))


def test_a_network_folder_is_like_any_other(shards: Path, tmp_path: Path) -> None:
    there = copytree(shards, tmp_path / "vast" / "shards")  # by such a name litdata knows one
    assert rows(module(there).train_dataloader()) == rows(module(shards).train_dataloader())


def position(shards: Path, batches: int | None) -> dict[str, object]:
    data = module(shards, num_workers=2)
    loader = data.train_dataloader()
    assert len(list(islice(loader, batches))) == (batches or len(loader))
    return data.state_dict()


def test_the_middle_of_an_epoch_belongs_to_its_workers(shards: Path) -> None:
    for change, words in (
        ({"num_workers": 0}, "num_workers 2, but now it is 1"),
        ({"num_workers": 2, "batch_size": 8}, "batch_size 4, but now it is 8"),
    ):
        data = module(shards, **change)
        data.load_state_dict(position(shards, 3))
        with pytest.raises(FerVitError, match=f"middle of an epoch with {words}. Go on with the same"):
            data.train_dataloader()


def test_the_end_of_an_epoch_suits_any_number_of_workers(shards: Path) -> None:
    data, whole = module(shards), module(shards)
    data.load_state_dict(position(shards, None))
    first, second = (rows(loader) for loader in [whole.train_dataloader()] * 2)
    assert rows(data.train_dataloader()) == second != first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_position_counts_once(shards: Path, workers: int) -> None:
    whole = module(shards, num_workers=workers).train_dataloader()
    first, second = rows(whole), rows(whole)
    begun = module(shards, num_workers=workers)
    list(islice(begun.train_dataloader(), 3))
    data = module(shards, num_workers=workers)
    data.load_state_dict(begun.state_dict())
    loader = data.train_dataloader()
    assert rows(islice(loader, 5)) == first[3:8]  # left before its end, as Lightning does
    assert rows(loader) == second


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_in_mid_epoch(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    seen: list[list[int]] = []
    step = FERTask.training_step
    monkeypatch.setattr(FERTask, "training_step", lambda *a: (seen.append(a[1].row.tolist()), step(*a))[1])

    def fit(folder: str, *words: str) -> list[list[int]]:
        seen.clear()
        logger = f"--trainer.logger.init_args.save_dir={tmp_path / folder}"
        main([*FIT, f"--data.num_workers={workers}", f"--data.manifest={shards}", logger, *words])
        return list(seen)

    def last(folder: str) -> str:
        return f"--ckpt_path={tmp_path / folder / 'default' / 'version_0' / 'checkpoints' / 'last.ckpt'}"

    whole = fit("whole")
    epoch = len(whole) // 2
    first = fit("first", "--trainer.max_steps=2", "--trainer.val_check_interval=2")
    then = fit("then", last("first"), f"--trainer.max_steps={epoch + 2}", "--trainer.val_check_interval=2")
    end = fit("end", last("then"))
    assert first + then + end == whole
    assert len(first) == 2
    assert len(then) == epoch
    assert len(set(chain.from_iterable(whole[:epoch]))) == epoch * FACES


@pytest.fixture
def bucket(shards: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The shards in an object store on this machine."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("litdata.utilities.dataset_utilities._LITDATA_CACHE_DIR", str(tmp_path / "cache"))
    client = boto3.client("s3")
    client.create_bucket(Bucket="faces")
    for file in shards.iterdir():
        client.upload_file(str(file), "faces", f"some/where/{file.name}")
    yield "s3://faces/some/where"
    server.stop()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_object_store_gives_what_the_folder_gives(bucket: str, shards: Path, workers: int) -> None:
    there, here = module(Path(bucket), num_workers=workers), module(shards, num_workers=workers)
    assert there.manifest.table.equals(here.manifest.table)
    assert torch.equal(there.class_counts(), here.class_counts())
    assert rows(there.train_dataloader()) == rows(here.train_dataloader())
