"""The command `configs`: lists the included configs."""

import re

from fer_vit.report.table import align_columns
from fer_vit.store.folder import CONFIGS, shipped_configs

MEASURED = re.compile(
    r"([\d.]+%) accuracy on the [\d,]+ (\w+)"
)  # in a config's header, with the split


def configs() -> None:
    """Lists the included training configs with their measured accuracy.

    `--config` of fit, validate and test accepts their names; a file with the same name takes
    precedence. A config that is "laid over another config" changes parts of it: give both. To make
    your own, copy one from the printed folder.

    Examples:
        fer-vit configs
    """
    rows = [("name", "accuracy", "what it is")]
    for name, path in shipped_configs().items():
        header = [
            line[2:]
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.startswith("#")
        ]
        measured = MEASURED.search(" ".join(header))
        rows.append((name, " ".join(measured.groups()) if measured else "-", header[0]))
    print(
        f"{align_columns(rows)}\n\nA config is a recipe for training: fer-vit fit --config NAME --data.manifest "
        f"faces.parquet\nTo make your own, copy a file from {CONFIGS}. (-: no accuracy measured)"
    )
