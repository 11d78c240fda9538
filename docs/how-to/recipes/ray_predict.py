"""Predicts photos on a Ray cluster, and writes the rows of `fer-vit predict` as Parquet tables.

    python ray_predict.py /data/photos /data/faces
    python ray_predict.py s3://bucket/photos s3://bucket/faces
    python ray_predict.py photos.txt /data/faces

In photos.txt, each line is a path, or an address that begins with https:// or s3://.

Each core or GPU of the cluster has an actor with the model. The same command resumes after an
interruption. Every machine needs `pip install "fer-vit[ray]"`, and paths that all machines share.
For s3://, set the keys (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`) on every machine, or give
the machines a role.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.compute as pc
import ray
from pyarrow.dataset import dataset
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem
from pyarrow.parquet import write_table

import fer_vit
from fer_vit.errors import FerVitError, ImageError
from fer_vit.face.image import MAX_FILE_BYTES, check_file_size, read_bytes
from fer_vit.listing import PHOTO_SUFFIXES
from fer_vit.predict.inputs import find_inputs

BATCH_SIZE = 64  # photos that an actor holds in memory
CONNECTIONS = 8  # photos that an actor fetches at a time
SECONDS = 60  # how long a server may not answer
# One client for each bucket. Ray sends functions by value, which `functools.cache` does not allow.
BUCKETS: dict[str, FileSystem] = {}


def open_bucket(name: str) -> FileSystem:
    """Returns the file system of a bucket, in its region or at `AWS_ENDPOINT_URL`."""
    if name not in BUCKETS:
        BUCKETS[name] = FileSystem.from_uri(f"s3://{name}")[0]
    return BUCKETS[name]


def find_place(path: str) -> tuple[FileSystem, str]:
    """Returns the file system of a path, and the path in it."""
    if path.startswith("s3://"):
        place = path.removeprefix("s3://")
        return open_bucket(place.partition("/")[0]), place
    return LocalFileSystem(), str(Path(path).absolute())


def make_absolute(path: str) -> str:
    """Returns a path that means the same in the working directory of each actor."""
    if path.startswith(("http://", "https://", "s3://")):
        return path
    return str(Path(path).absolute())


def list_photos(source: str) -> list[str]:
    """Lists the photos of a folder, of s3://, or of a text file; each once."""
    if source.endswith(".txt"):
        lines = Path(source).read_text(encoding="utf-8").splitlines()
        paths = filter(None, map(str.strip, lines))
        return list(dict.fromkeys(map(make_absolute, paths)))
    if not source.startswith("s3://"):
        return [str(path.absolute()) for path in find_inputs([source]).files]
    filesystem, folder = find_place(source)
    entries = filesystem.get_file_info(FileSelector(folder, recursive=True))
    paths = [entry.path for entry in entries if entry.is_file]
    return [f"s3://{path}" for path in paths if Path(path).suffix.lower() in PHOTO_SUFFIXES]


def fetch(path: str) -> bytes | str:
    """Returns the content of a photo, or the reason why it can't be fetched."""
    try:
        if path.startswith(("http://", "https://")):
            with urlopen(path, timeout=SECONDS) as response:
                content = response.read(MAX_FILE_BYTES + 1)
        elif path.startswith("s3://"):
            filesystem, key = find_place(path)
            with filesystem.open_input_stream(key) as file:
                content = file.read(MAX_FILE_BYTES + 1)
        else:
            return read_bytes(Path(path))
        check_file_size(len(content))
    except (OSError, ValueError, HTTPException, ImageError) as error:
        return str(error)
    return content


class Predictor:
    """An actor, which predicts parts."""

    def __init__(self, model: str | None, device: str, output: str) -> None:
        self.model = fer_vit.load(model, device)
        self.output = output

    def __call__(self, part: pa.Table) -> pa.Table:
        """Writes the rows of a part.

        The name of the table depends on the paths alone, so a part that is predicted again
        replaces its table. The table appears at once, with all of its rows.
        """
        paths = part["path"].to_pylist()
        tables = []
        for start in range(0, len(paths), BATCH_SIZE):
            tables.append(self.predict(paths[start : start + BATCH_SIZE]))
        name = sha256("\n".join(paths).encode()).hexdigest()[:16]
        filesystem, folder = find_place(self.output)
        hidden = f"{folder}/.{name}"  # readers leave out names that begin with a dot
        write_table(pa.concat_tables(tables), hidden, filesystem=filesystem)
        filesystem.move(hidden, f"{folder}/part-{name}.parquet")
        return part

    def predict(self, paths: Sequence[str]) -> Any:
        """Returns the rows of a batch of photos."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            fetched = list(pool.map(fetch, paths))
        contents = []
        reasons = {}
        for path, content in zip(paths, fetched, strict=True):
            if isinstance(content, str):
                reasons[path] = content
                content = b""
            contents.append(content)
        table = pa.table({"path": paths, "bytes": contents})
        # A photo that crashes its decoder ends the process that reads it: a worker, not the actor.
        rows = self.model.predict_batch(table, workers=1)
        statuses = []
        for path, status in zip(rows["path"].to_pylist(), rows["status"].to_pylist(), strict=True):
            statuses.append(reasons.get(path, status))
        column = rows.schema.get_field_index("status")
        return rows.set_column(column, "status", pa.array(statuses, pa.string()))


def predict(photos: Sequence[str], output: str, model: str | None, part_size: int) -> None:
    """Predicts photos on all cores or GPUs of the cluster.

    Ray predicts a part again if its actor has died.
    """
    ray.init()
    gpus = int(ray.cluster_resources().get("GPU", 0))
    actors = gpus or int(ray.cluster_resources()["CPU"])
    size = min(part_size, math.ceil(len(photos) / actors))
    parts = []
    for start in range(0, len(photos), size):
        parts.append(pa.table({"path": photos[start : start + size]}))
    needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    ray.data.from_arrow(parts).map_batches(
        Predictor,
        fn_constructor_args=(model, "cuda" if gpus else "cpu", output),
        batch_format="pyarrow",
        batch_size=size,
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(parts))),
        **needs,
    ).materialize()


def find_rows(output: str) -> dict[str, bool]:
    """Returns which photos have rows in the output, and whether each row is there once."""
    filesystem, folder = find_place(output)
    filesystem.create_dir(folder)
    schema = pa.schema({"path": pa.string(), "face": pa.int64()})
    rows = dataset(folder, schema, format="parquet", filesystem=filesystem).to_table()
    photos = rows.group_by("path").aggregate([("path", "count"), ("face", "max")])
    # The faces of a photo have the numbers from 0. A photo without a face has a row without one.
    expected = pc.add(pc.fill_null(photos["face_max"], 0), 1)
    once = pc.equal(photos["path_count"], expected)
    return dict(zip(photos["path"].to_pylist(), once.to_pylist(), strict=True))


def main() -> None:
    """Predicts the photos without rows, and checks the rows of all photos."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("photos", help="a folder, s3://BUCKET/FOLDER or a text file")
    parser.add_argument("output", help="a folder or s3://BUCKET/FOLDER")
    parser.add_argument("--model", help="as for `fer-vit predict --checkpoint`")
    parser.add_argument("--part_size", type=int, default=1000, help="most photos of a table")
    arguments = parser.parse_args()
    output = make_absolute(arguments.output)
    model = arguments.model
    if model and Path(model).exists():
        model = make_absolute(model)
    try:
        photos = list_photos(arguments.photos)
    except (FerVitError, OSError) as error:
        sys.exit(f"{error}")
    found = find_rows(output)
    missing = [path for path in photos if path not in found]
    print(f"{len(photos):,} photos, {len(photos) - len(missing):,} of them with rows")
    if missing:
        predict(missing, output, model, arguments.part_size)
        found = find_rows(output)
    wrong = [path for path in photos if not found.pop(path, False)]
    wrong += found  # rows of photos that are not in the list
    if wrong:
        sys.exit(f"{len(wrong):,} photos don't have their rows exactly once, the first {wrong[0]}")
    print(f"{len(photos):,} photos have their rows exactly once in {output}")


if __name__ == "__main__":
    main()
