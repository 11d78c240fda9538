import weakref
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fer_vit.data.dataset import Batch, FaceDataset, ShardDataset, collate
from fer_vit.data.manifest import Manifest
from fer_vit.data.transforms import AugmentConfig
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.train.datamodule import FaceDataModule
from tests.helpers.commands import main
from tests.helpers.marks import slow


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of uneven size: 5 of 112 drawn training faces, and the two other splits."""
    folder = tmp_path_factory.mktemp("sharded") / "shards"
    words = ["--count=160", "--size=48", "--detector=none", "--shards=5", "--workers=1"]
    main(["prepare", "drawn", str(folder.parent / "faces"), str(folder), *words])
    return folder


def module(place: str | Path, **options: object) -> FaceDataModule:
    return FaceDataModule(
        place, **{"batch_size": 4, "num_workers": 0, "spec": CropSpec(32), **options}
    )  # type: ignore[arg-type]


def rows(loader: object) -> list[list[int]]:
    return [batch.row.tolist() for batch in loader]  # type: ignore[attr-defined]


def process(monkeypatch: pytest.MonkeyPatch, rank: int, processes: int) -> None:
    """Lets data modules take this for one of several processes."""
    monkeypatch.setattr("fer_vit.train.datamodule._processes", lambda: processes)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)


@pytest.mark.parametrize(("processes", "workers"), [(1, 0), *slow((3, 2))])
def test_each_row_once_an_epoch(
    shards: Path, monkeypatch: pytest.MonkeyPatch, processes: int, workers: int
) -> None:
    every = set(range(len(Manifest.read(shards, ["train"]))))
    epochs: list[list[int]] = [[], []]
    lengths: set[int] = set()
    for rank in range(processes):
        process(monkeypatch, rank, processes)
        loader = module(shards, num_workers=workers, batch_size=5).train_dataloader()
        for number, epoch in enumerate(epochs):
            loader.sampler.set_epoch(number)
            batches = rows(loader)
            lengths.add(len(batches))
            assert len(batches) == len(loader)
            assert {len(batch) for batch in batches} == {5}
            epoch += chain.from_iterable(batches)
    assert len(lengths) == 1  # another number of batches would let processes wait for one another
    for epoch in epochs:
        assert len(epoch) > len(every) - 5 * processes
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) < every
    assert epochs[0] != epochs[1]
    assert every - set(epochs[0]) != every - set(epochs[1])


@pytest.mark.parametrize("processes", [1, 3])
def test_a_process_reads_a_shard_once(
    shards: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    read = []
    alive = weakref.WeakSet()
    most = 0
    original = ShardDataset.read

    def counted(dataset: ShardDataset, index: int) -> FaceDataset:
        read.append(index)
        faces = original(dataset, index)
        alive.add(faces)
        return faces

    monkeypatch.setattr(ShardDataset, "read", counted)
    for rank in range(processes):
        process(monkeypatch, rank, processes)
        begin = len(read)
        for _ in module(shards, batch_size=2).train_dataloader():
            most = max(most, len(alive))
        assert len(set(read[begin:])) == len(read[begin:])
    assert most <= 3
    assert set(read) == set(range(5))
    assert len(read) < 5 + processes  # two share a shard where one stretch ends and the next begins


def test_neither_workers_nor_processes_change_what_is_seen(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Batch]] = [
        list(module(shards, num_workers=workers).train_dataloader()) for workers in (0, 1, 2)
    ]
    for batches in zip(*seen, strict=True):
        assert batches[0].path == batches[1].path == batches[2].path
        for field in ("image", "boxes"):
            assert all(
                torch.equal(getattr(batches[0], field), getattr(batch, field))
                for batch in batches[1:]
            )
    images = {
        int(row): image
        for batch in seen[0]
        for row, image in zip(batch.row, batch.image, strict=True)
    }
    process(monkeypatch, 1, 2)
    for batch in module(shards).train_dataloader():
        assert all(
            torch.equal(images[int(row)], image)
            for row, image in zip(batch.row, batch.image, strict=True)
        )


def test_a_streamed_sample_is_the_manifests(shards: Path) -> None:
    still = dict.fromkeys(
        ("mirror", "degrees", "scale", "shift", "brightness", "contrast", "erase"), 0.0
    )
    data = module(shards, augment=AugmentConfig(**still))
    whole = Manifest.read(shards)
    data.manifest = whole
    dataset = data.dataset("train")
    batches = list(data.train_dataloader())
    for batch in batches:
        plain = collate([dataset[row] for row in batch.row.tolist()])
        assert batch.path == plain.path
        for field in ("image", "boxes", "valid", "target", "row", "to_crop"):
            assert torch.equal(getattr(batch, field), getattr(plain, field))
    assert len(batches) == len(dataset) // 4


def test_invalid_streams(shards: Path) -> None:
    for options in ({"balanced": True}, {"fold": "0/2"}):
        with pytest.raises(FerVitError, match=r"`fold` .*`balanced`"):
            module(shards, **options)
    with pytest.raises(FerVitError, match=r"200 "):
        module(shards, batch_size=200, num_workers=2).train_dataloader()


@pytest.fixture
def copied(shards: Path, tmp_path: Path) -> Path:
    return Path(copytree(shards, tmp_path / "shards"))


def test_shards_of_another_prepare(copied: Path, tmp_path: Path) -> None:
    other_shards = tmp_path / "other"
    words = ["--count=40", "--size=48", "--detector=none", "--shards=5", "--workers=1"]
    main(["prepare", "drawn", str(tmp_path / "faces"), str(other_shards), *words])
    copy(other_shards / "train-00001-of-00005.parquet", copied)
    with pytest.raises(FerVitError, match=r"more than one `prepare`"):
        module(copied).train_dataloader()


def test_a_shard_that_changes_during_a_run(copied: Path) -> None:
    loader = module(copied).train_dataloader()
    path = copied / "train-00002-of-00005.parquet"
    table = pq.read_table(path)
    unlabelled = table.set_column(2, table.schema.field(2), pa.nulls(len(table), pa.string()))
    for changed, words in (
        (table.slice(1), "has changed"),
        (unlabelled, ".*label"),
        (table.replace_schema_metadata(), ".*`fer_vit`"),
    ):
        pq.write_table(changed, path)
        with pytest.raises(FerVitError, match=rf"train-00002-of-00005.parquet:? {words}"):
            rows(loader)


def position(shards: Path, epoch: int, batches: int) -> dict[str, Any]:
    return {"epoch": epoch, "batches": batches, **module(shards)._order()}


@pytest.mark.parametrize(("processes", "workers"), [(1, 0), *slow((2, 2))])
def test_a_position_counts_once(
    shards: Path, monkeypatch: pytest.MonkeyPatch, processes: int, workers: int
) -> None:
    process(monkeypatch, processes - 1, processes)
    loader = module(shards).train_dataloader()
    epochs = []
    for epoch in (0, 1):
        loader.sampler.set_epoch(epoch)
        epochs.append(rows(loader))
    data = module(shards, num_workers=workers)
    data.load_state_dict(position(shards, 0, 3))
    loader = data.train_dataloader()
    assert rows(islice(loader, 5)) == epochs[0][3:8]  # left before its end, as Lightning does
    loader.sampler.set_epoch(1)
    assert rows(loader) == epochs[1]
    data.load_state_dict(position(shards, 1, 0) | {"batch_size": 7, "world_size": 9})
    assert rows(data.train_dataloader()) == epochs[1]  # the end of an epoch suits all


@pytest.fixture
def bucket(shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The shards in an object store on this machine."""
    import boto3
    from moto.server import ThreadedMotoServer

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
    client = boto3.client("s3")
    client.create_bucket(Bucket="faces")
    for file in shards.iterdir():
        client.upload_file(str(file), "faces", f"some/where/{file.name}")
    yield "s3://faces/some/where"
    server.stop()


@pytest.mark.slow
def test_an_object_store_equals_the_folder(bucket: str, shards: Path) -> None:
    remote, here = (module(place, num_workers=2) for place in (Path(bucket), shards))
    assert remote.manifest.table.equals(here.manifest.table)
    assert torch.equal(remote.class_counts(), here.class_counts())
    assert rows(remote.train_dataloader()) == rows(here.train_dataloader())


def test_streamed_faces_may_lack_a_label_where_the_task_allows(tmp_path: Path) -> None:
    place = tmp_path / "shards"
    words = ["--count=48", "--size=32", "--detector=none", "--shards=2", "--workers=1"]
    main(["prepare", "drawn", str(tmp_path / "faces"), str(place), "--heads=true", *words])
    data = module(place)
    with pytest.raises(FerVitError, match="label"):
        list(data.train_dataloader())
    data.partial = True
    batches = [*data.train_dataloader(), *data.val_dataloader()]
    known = torch.cat([batch.target.isfinite().all(1) for batch in batches])
    assert 0 < known.sum() < len(known)
    for batch in batches:
        assert batch.targets["movements"].isfinite().all()
    labels = Manifest.read(place, ["train"]).table["label"]
    assert data.class_counts().sum() == len(labels) - labels.null_count
