"""The recipe for Ray on a cluster of two nodes on this machine: nothing is lost or repeated."""

import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from fer_vit.face.image import encode_jpeg
from fer_vit.geometry import Array
from tests.helpers.commands import main
from tests.helpers.processes import PATIENCE, wait_until

ray = pytest.importorskip("ray", reason="the recipe needs the extra `ray`")
boto3 = pytest.importorskip("boto3", reason="the recipe's test needs the extra `slow`")
pytestmark = pytest.mark.slow  # it starts some twenty processes
ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs" / "how-to" / "recipes" / "ray_predict.py"


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[Any, str]]:
    """The client of an object store on this machine with a bucket, and its address."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    address = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        yield client, address
    server.stop()


@pytest.fixture(scope="module")
def cluster(bucket: object) -> Iterator[str]:
    """The address of a cluster of two nodes with one core each. It knows the object store."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100_000_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Without the guard against the network: nodes talk to each other by the machine's address.
        patch.setenv("PYTHONPATH", str(ROOT))
        two = Cluster(initialize_head=True, head_node_args=node)
        two.add_node(**node)
        patch.setenv("RAY_ADDRESS", two.address)
        yield two.address
        two.shutdown()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, astronaut: Array) -> Path:
    """Forty large photos of one face, one photo without a face, and two files that are damaged."""
    folder = tmp_path_factory.mktemp("photos")
    large = encode_jpeg(astronaut.repeat(4, 0).repeat(4, 1))
    for number in range(40):
        (folder / f"{number}.jpg").write_bytes(large)
    (folder / "nobody.jpg").write_bytes(encode_jpeg(astronaut[:, :100]))
    (folder / "half.jpg").write_bytes(large[:300])
    (folder / "text.png").write_text("no image")
    return folder


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, RECIPE, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def actors() -> list[psutil.Process]:
    """The actors of the cluster, which are descendants of this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith("ray::MapWorker"):
            found.append(process)
    return found


def test_an_interrupted_run_resumes_and_survives_the_death_of_an_actor(
    cluster: str, photos: Path, tmp_path: Path
) -> None:
    output = tmp_path / "faces"

    def parts() -> int:
        return len([*output.glob("part-*.parquet")])

    interrupted = start(photos, output, "--part_size", 2)
    wait_until(lambda: parts() >= 2)
    interrupted.kill()
    interrupted.communicate()
    wait_until(lambda: not actors())
    done = parts()
    assert done < 22

    resumed = start(photos, output, "--part_size", 2)
    wait_until(lambda: parts() > done)
    actors()[0].send_signal(signal.SIGKILL)
    log, _ = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, log
    assert "43 photos have their rows exactly once" in log
    assert "43 photos, 0 of them" not in log

    main(["predict", str(photos), "--output", str(tmp_path / "expected.parquet")])
    expected = pq.read_table(tmp_path / "expected.parquet")
    rows = pq.read_table(output)
    assert rows.column_names == expected.column_names
    order = [("path", "ascending"), ("face", "ascending")]
    rows = rows.sort_by(order)
    expected = expected.sort_by(order)
    for column in ("path", "face", "status", "label", "model"):
        assert rows[column].equals(expected[column]), column

    again = start(photos, output)
    log, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, log

    # a part that is there twice
    shutil.copy(next(output.glob("part-*.parquet")), output / "part-copy.parquet")
    repeated = start(photos, output)
    log, _ = repeated.communicate(timeout=PATIENCE)
    assert repeated.returncode == 1
    assert "don't have their rows exactly once" in log


def test_addresses_and_an_object_store_are_read_and_written(
    cluster: str, bucket: tuple[Any, str], photos: Path, tmp_path: Path
) -> None:
    client, address = bucket
    for name in ("0.jpg", "text.png"):
        client.upload_file(
            str(photos / name), "bucket", f"photos/a b/{name}", {"ACL": "public-read"}
        )
    assert runpy.run_path(str(RECIPE))["list_photos"]("s3://bucket/photos") == [
        "s3://bucket/photos/a b/0.jpg",
        "s3://bucket/photos/a b/text.png",
    ]
    expected = {
        "s3://bucket/photos/a b/0.jpg": "ok",
        "s3://bucket/photos/a b/text.png": "not an image that can be decoded",
        "s3://bucket/gone.jpg": "Path does not exist",
        f"{address}/bucket/photos/a%20b/0.jpg": "ok",
        f"{address}/bucket/photos/a b/0.jpg": "URL can't contain control characters",
        f"{address}/bucket/gone.jpg": "HTTP Error 40",
        str(photos / "nobody.jpg"): "no face",
        str(photos / "gone.jpg"): "No such file or directory",
    }
    listed = tmp_path / "photos.txt"
    listed.write_text("\n".join([*expected, *expected]))
    run = start(listed, "s3://bucket/faces")
    log, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, log
    rows = pq.read_table("s3://bucket/faces")
    statuses = dict(zip(rows["path"].to_pylist(), rows["status"].to_pylist(), strict=True))
    assert {*statuses} == {*expected}
    for path, status in expected.items():
        assert status in statuses[path]
