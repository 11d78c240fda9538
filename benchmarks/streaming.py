"""Speed and peak memory of training data: one file against shards, and shards of four times as many faces.

python -m benchmarks.streaming [WORKERS]

Draws faces of 224 pixels into a temporary folder; prints a Markdown table. Every row is measured in processes of its
own: two epochs after a first batch, by the clock and in CPU time of all processes, with the largest resident memory of
the parent and of its largest worker.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from fer_vit.commands.prepare import prepare
from fer_vit.face.crop import CropSpec
from fer_vit.train.datamodule import FaceDataModule

FACES = 1000
PER_SHARD = 125
EPOCHS = 2


def measure(place: str, workers: int) -> dict[str, float]:
    """Reads the training faces for some epochs; returns samples a second, CPU ms a sample, and peak memory in MB."""
    loader = FaceDataModule(place, batch_size=64, num_workers=workers, spec=CropSpec(112)).train_dataloader()
    next(iter(loader))
    start, used = time.perf_counter(), time.process_time()
    faces = sum(len(batch.path) for _ in range(EPOCHS) for batch in loader)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    del loader
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used + children.ru_utime + children.ru_stime) / faces * 1000
    # A process's own ru_maxrss starts with that of the one that started it.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    parent, worker = int(status["VmHWM"].split()[0]) / 1024, children.ru_maxrss / 1024
    return {"speed": faces / seconds, "cpu": cpu, "parent": parent, "worker": worker}


def main(workers: int) -> None:
    """Prepares the data sets, measures each in a fresh process, and prints the table."""
    print("| data | faces | samples/s | CPU ms a sample | parent, MB | largest worker, MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for times in (1, 4):
            for kind, shards in (("one file", None), ("shards", times * FACES // PER_SHARD)):
                out = Path(folder) / f"{times}" / ("faces.parquet" if shards is None else "shards")
                root, count = Path(folder) / f"{times}-{kind}", times * FACES
                with redirect_stdout(sys.stderr):
                    prepare("drawn", root, out, count=count, size=224, embed="always", shards=shards, detector="none")
                words = [sys.executable, "-m", "benchmarks.streaming", str(workers), str(out)]
                line = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
                found = json.loads(line)
                memory = f"{found['parent']:.0f} | {found['worker']:.0f}"
                print(f"| {kind} | {count:,} | {found['speed']:.0f} | {found['cpu']:.2f} | {memory} |")


if __name__ == "__main__":
    words = sys.argv[1:] or ["1"]
    if len(words) == 2:
        print(json.dumps(measure(words[1], int(words[0]))))
    else:
        main(int(words[0]))
