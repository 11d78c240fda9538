"""Training faces streamed out of shards, from a folder or an object store. The only file that knows litdata."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fer_vit.data.dataset import Change, FaceDataset
from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.sample import Batch, Draw, Sample, collate
from fer_vit.data.samplers import check_position
from fer_vit.data.shards import check_index, place_name
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.processes import derived_seed, run_seed, start_worker

os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")  # it asks the network for a newer version
try:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.downloader import _OBSTORE_CLIENT_OPTIONS
    from litdata.streaming.item_loader import BaseItemLoader, Interval
except ImportError as error:
    raise FerVitError(f'Shards are streamed by litdata ({error}): pip install "fer-vit[stream]".') from error


class ShardReader(BaseItemLoader):
    """Opens a shard as the manifest that it is, one at a time.

    litdata's own loader of Parquet needs polars, which forbids forked workers.

    Args:
        names: The labels that every shard has.
        spec: How a face becomes a crop.
        augment: Changes crop and landmarks.
    """

    def __init__(self, names: tuple[str, ...], spec: CropSpec, augment: Change | None) -> None:
        self.names = names
        self.spec = spec
        self.augment = augment
        self.epoch = 0
        self.shard: int | None = None
        self.faces: FaceDataset | None = None

    def generate_intervals(self) -> list[Interval]:
        """Lists the rows of every shard: the first, the first and last to be read, the last; counted over all."""
        ends = torch.tensor([shard["chunk_size"] for shard in self._chunks]).cumsum(0).tolist()
        return [Interval(begin, begin, end, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def load_item_from_chunk(self, index: int, chunk_index: int, chunk_filepath: str, begin: int, size: int) -> Sample:
        """Returns the sample of a row of a shard.

        Args:
            index: The row, counted over all shards.
            chunk_index: The shard.
            chunk_filepath: Where it is, or will be once it is downloaded.
            begin: Its first row.
            size: Its size in bytes.

        Raises:
            FerVitError: The shard is wrong, or a row has no label, or its image cannot be read.
        """
        if self.faces is None or self.shard != chunk_index:
            self._wait_until_chunk_ready(chunk_index, chunk_filepath, size)
            manifest = Manifest.read(chunk_filepath)
            if manifest.names != self.names:
                raise FerVitError(
                    f"{chunk_filepath}: expected the labels {', '.join(self.names)}, but got "
                    f"{', '.join(manifest.names)}. Run `fer-vit prepare` again."
                )
            self.faces, self.shard = FaceDataset(manifest, self.spec, self.augment), chunk_index
            if self.faces.targets is None:
                raise no_label(chunk_filepath, "train")
        draw = Draw(index - begin, derived_seed(run_seed(), self.epoch, index))
        return self.faces[draw]._replace(row=index)

    def close(self, chunk_index: int) -> None:
        """Lets go of the shard."""
        self.faces = None

    def delete(self, chunk_index: int, chunk_filepath: str) -> None:
        """Makes place in the cache."""
        Path(chunk_filepath).unlink(missing_ok=True)

    def pre_load_chunk(self, chunk_index: int, chunk_filepath: str) -> None:
        """Nothing: a shard that was downloaded is opened when its turn comes."""

    def encode_data(self, data: list[bytes], sizes: list[int], flattened: list[Any]) -> Any:
        """Shards are not written here."""
        raise NotImplementedError


class ShardDataset(StreamingDataset):
    """litdata's data set, whose reader knows the epoch."""

    def set_epoch(self, current_epoch: int) -> None:
        """Hands the epoch on."""
        super().set_epoch(current_epoch)
        self.item_loader.epoch = current_epoch


class ShardLoader(StreamingDataLoader):
    """litdata's loader, in which a position that was loaded counts for one epoch.

    litdata forgets it when it is asked for one batch more than there are. Lightning, which has counted, does not ask,
    and the rest of that epoch would come again.
    """

    begun = False

    def __iter__(self) -> Iterator[Batch]:
        if self.begun:
            self.restore = False
        self.begun = self.restore
        yield from super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """How far the epoch has come, and in how many batches."""
        return {**super().state_dict(), "batches": len(self)}


def shard_loader(
    place: str | Path, names: tuple[str, ...], spec: CropSpec, augment: Change | None, batch_size: int, num_workers: int
) -> ShardLoader:
    """Returns batches of the training shards for this process, in another order every epoch.

    All processes have the same number of batches; rows that do not fill one for every worker are left out, other ones
    in every epoch.

    Args:
        place: The folder or URL.
        names: Its labels.
        spec: How a face becomes a crop.
        augment: Changes crop and landmarks.
        batch_size: Faces per batch.
        num_workers: Processes that decode and augment; 0 does it in this one.

    Raises:
        FerVitError: There are fewer rows than one batch for every process.
    """
    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        # The user's own word for a store in the same network; litdata has none to allow it.
        _OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    check_index(place)
    dataset = ShardDataset(
        place_name(place),
        item_loader=ShardReader(names, spec, augment),
        shuffle=True,
        drop_last=True,
        seed=run_seed(),
        item_shuffle_window=0,  # all rows of a shard among one another
    )
    dataset.posix_fast = None  # on network folders litdata would shuffle otherwise and choose the number of workers
    loader = ShardLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        drop_last=True,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=start_worker,
    )
    if not len(loader):
        raise FerVitError(
            f"{place} has fewer training rows than one batch of {batch_size} for every process: choose a smaller "
            "data.batch_size."
        )
    return loader


def go_on(loader: ShardLoader, position: dict[str, Any]) -> None:
    """Lets a loader go on where another one stopped.

    Args:
        loader: The loader.
        position: The other one's `state_dict()`.

    Raises:
        FerVitError: It stopped in mid-epoch, and another number of processes or workers, or another batch size, would
            deal out the rest of that epoch otherwise.
    """
    theirs, mine = position["dataset"], loader.state_dict()["dataset"]
    if position["num_samples_yielded"] >= position["batches"] * theirs["batch_size"]:
        loader.current_epoch = position["current_epoch"]
        return
    check_position(theirs, {name: mine[name] for name in ("world_size", "num_workers", "batch_size")})
    # The shards, or their cache, may have moved.
    here = {name: mine[name] for name in ("input_dir_path", "input_dir_url", "cache_dir_path")}
    loader.load_state_dict({**position, "dataset": {**theirs, **here}})
