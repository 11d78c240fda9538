"""Training faces streamed out of shards, from a folder or an object store. The only file that knows litdata."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fer_vit.data.crop import CropSpec
from fer_vit.data.dataset import Change, FaceDataset
from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.sample import Batch, Sample, collate
from fer_vit.errors import FerVitError
from fer_vit.face.image import one_thread

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
                raise FerVitError(f"{chunk_filepath}: expected the labels {', '.join(self.names)}.")
            self.faces, self.shard = FaceDataset(manifest, self.spec, self.augment), chunk_index
            if self.faces.targets is None:
                raise no_label(chunk_filepath, "train")
        return self.faces[index - begin]._replace(row=index)

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


class ShardLoader(StreamingDataLoader):
    """litdata's loader, which knows that an epoch is over once its last batch is out.

    litdata knows it when it is asked for one batch more. Lightning, which has counted, does not ask, and the rest of a
    resumed epoch would come again.
    """

    restore: bool

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            if self.restore and self.state_dict()["num_samples_yielded"] >= len(self.dataset):
                self.restore = False
            yield batch


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
    dataset = StreamingDataset(
        str(place),
        item_loader=ShardReader(names, spec, augment),
        shuffle=True,
        drop_last=True,
        seed=int(os.environ.get("PL_GLOBAL_SEED", 0)),  # as Lightning's own samplers: the same in all processes
        item_shuffle_window=0,  # all rows of a shard among one another
    )
    loader = ShardLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        drop_last=True,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=num_workers > 0,
        worker_init_fn=one_thread,
    )
    if not len(loader):
        raise FerVitError(
            f"{place} has fewer training rows than one batch of {batch_size} for every process: choose a smaller "
            "data.batch_size."
        )
    return loader


def go_on(loader: ShardLoader, position: dict[str, Any]) -> None:
    """Lets a loader go on where another one stopped, with as many processes and workers or with others.

    Args:
        loader: The loader.
        position: The other one's `state_dict()`.
    """
    mine = loader.dataset
    here = {  # the shards, or their cache, may have moved
        "input_dir_path": mine.input_dir.path,
        "input_dir_url": mine.input_dir.url,
        "cache_dir_path": mine.cache_dir.path,
    }
    loader.load_state_dict({**position, "dataset": {**position["dataset"], **here}})
