"""The command `configs`: lists the shipped configs."""

import re

from fer_vit.report.table import align_columns
from fer_vit.store.config_files import CONFIGS, shipped_configs

# Matches accuracy and split in the header of a config.
ACCURACY_TEXT = re.compile(r"([\d.]+%) accuracy on the [\d,]+ (\w+)")


def header_lines(text: str) -> list[str]:
    """Returns the comments of a config without `# `; the first line states what it trains."""
    return [line[2:] for line in text.splitlines() if line.startswith("#")]


def measured_accuracy(text: str) -> str | None:
    """Returns the accuracy and split that the header of a config states; None: not measured."""
    measured = ACCURACY_TEXT.search(" ".join(header_lines(text)))
    return " ".join(measured.groups()) if measured else None


def configs() -> None:
    """Lists the shipped training configs with their measured accuracy.

    Use a name with `--config`. If a config is "laid over another config", name both.

    Examples:
        fer-vit configs
    """
    rows = [("name", "accuracy", "what it is")]
    for name, path in shipped_configs().items():
        text = path.read_text(encoding="utf-8")
        rows.append((name, measured_accuracy(text) or "-", header_lines(text)[0]))

    print(align_columns(rows))
    print(
        "\nA config is a recipe for training: "
        "fer-vit fit --config NAME --data.manifest faces.parquet"
    )
    print(f"To make your own, copy a file from {CONFIGS}. (-: no accuracy measured)")
