"""Training faces streamed from shards in a folder or an object store.

A process reads its shards one after the other, prefetching the next one, and hands their rows, images still encoded, to
its workers: each row is read once, and at most three shards are in memory.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from fer_vit.data.dataset import Cropping, FaceDataset, make_sample
from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.sample import Draw, Sample
from fer_vit.data.samplers import TrainSampler
from fer_vit.data.shards import Shard, find_shards
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec


class ShardDataset(Dataset[Sample]):
    """The training rows of a folder or URL of shards with these labels, which `ShardSampler` passes in.

    Raises:
        FerVitError: There are none, one cannot be read, or they are from different runs of `prepare`.
    """

    def __init__(
        self,
        path: str | Path,
        names: tuple[str, ...],
        spec: CropSpec,
        augment: Cropping | None,
        unlabelled: bool = False,
    ) -> None:
        self.names = names
        self.unlabelled = unlabelled
        self.spec = spec
        self.augment = augment
        self.shards = [shard for shard in find_shards(path) if shard.split == "train"]
        if not self.shards:
            raise FerVitError(f"{path} has no rows with split train. Prepare the data set with that split.")
        with ThreadPoolExecutor() as pool:
            footers = list(pool.map(Shard.footer, self.shards))
        if len({(footer.metadata or {}).get(b"fer_vit") for footer in footers}) > 1:
            raise FerVitError(f"{path} holds shards of more than one `prepare`. Copy the whole folder again.")
        self.sizes = np.array([footer.num_rows for footer in footers])  # (K,)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def __getitem__(self, draw: Draw) -> Sample:
        assert draw.face is not None
        return make_sample(draw.face, draw, self.spec, self.augment)

    def read(self, index: int) -> FaceDataset:
        """Reads a shard; raises FerVitError when it is invalid or has changed, or a row lacks the label it needs."""
        shard = self.shards[index]
        faces = FaceDataset(Manifest.read_shard(shard, self.names), self.spec)
        if len(faces) != self.sizes[index]:
            raise FerVitError(f"{shard.location} has changed. Resume when nothing writes to the shards.")
        if faces.targets is None and not self.unlabelled:
            raise no_label(shard.location, "train")
        return faces

    def read_ahead(self, shards: Iterable[int]) -> Iterator[FaceDataset]:
        """Yields one shard after another; while one is in use, a thread reads the next."""
        with ThreadPoolExecutor(1) as pool:
            futures = (pool.submit(self.read, shard) for shard in shards)
            coming = next(futures, None)
            while coming:
                ready, coming = coming, next(futures, None)
                yield ready.result()


class ShardSampler(TrainSampler):
    """Deals the rows of a `ShardDataset` out to processes, shard by shard.

    Every epoch shuffles the shards, and the rows of each. Each process takes a stretch of these rows, all stretches
    being equally long; the remainder is skipped, different rows in every epoch.
    """

    dataset: ShardDataset

    def __iter__(self) -> Iterator[Draw]:
        sizes = self.dataset.sizes
        rng = np.random.default_rng((self.seed, self.epoch))
        stop = (self.rank + 1) * self.num_samples
        start = stop - self.num_samples + self.done // self.num_replicas
        stretch, end = [], 0
        for shard in rng.permutation(len(sizes)).tolist():
            begin, end = end, end + int(sizes[shard])
            if begin < stop and start < end:
                stretch.append((shard, max(start - begin, 0), stop - begin))
        first_rows = sizes.cumsum() - sizes
        read = self.dataset.read_ahead(shard for shard, *_ in stretch)
        for (shard, begin, end), faces in zip(stretch, read, strict=True):
            rng = np.random.default_rng((self.seed, self.epoch, shard + 1))  # with 0, the one above
            order, seeds = rng.permutation(len(faces)), rng.integers(2**31, size=len(faces))
            for row in order[begin:end].tolist():
                yield Draw(int(first_rows[shard]) + row, int(seeds[row]), face=faces.encoded(row))
