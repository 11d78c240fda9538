"""What a command trains repeatedly: a config with options of `fit`, in a folder, resumable."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import yaml

from fer_vit.errors import FerVitError
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.config_files import find_config
from fer_vit.store.hub import WEIGHTS_FILE
from fer_vit.train.checkpoints import newest_checkpoint
from fer_vit.train.custom import load_custom
from fer_vit.train.fit import fit, read_words
from fer_vit.train.resuming import FinishedError

LOGGER = logging.getLogger("fer_vit")

# Options of `fit` that the commands set.
RESERVED = ("config", "data.manifest", "ckpt_path", "trainer.logger", "trainer.default_root_dir")


@dataclass(frozen=True)
class Recipe:
    """A training that a command repeats on other faces or with other seeds.

    Args:
        config: A config file, or a name from `fer-vit configs`.
        options: Words of the command line of `fit`, for example `--trainer.max_epochs=3`.
        reserved: Options that the command sets besides `RESERVED`.
    """

    config: str
    options: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        find_config(self.config)
        for word in self.options:
            name = word.partition("=")[0].removeprefix("--").rstrip("+")
            for taken in (*RESERVED, *self.reserved):
                if name == taken or name.startswith(f"{taken}."):
                    raise FerVitError(f"This command sets {taken} itself. Remove `--{name}`.")

    @property
    def name(self) -> str:
        """The config's name, for folders and tables."""
        path = find_config(self.config)
        return Path(path).stem if os.path.isfile(path) else "options"

    @property
    def text(self) -> str:
        """The config and the options, for tables."""
        return " ".join([self.config, *self.options])

    @property
    def model(self) -> str | None:
        """The class of a user's task; None: FERTask."""
        return read_words(list(self.options)).model

    def key(self, manifest: Path, *parts: str) -> str:
        """Returns eight digits for the faces, the config, the options and further parts.

        Where the config, an option or a part names a model on this disk, the weights of the model
        count as well: another model of the same name is another run.
        """
        with manifest.open("rb") as file:
            content = file_digest(file, "sha256").digest()
        path = find_config(self.config)
        settings = Path(path).read_bytes() if os.path.isfile(path) else path.encode()
        content += settings
        for part in (*self.options, *parts):
            content += b"\0" + part.encode()

        names = _yaml_scalars(settings)
        for option in self.options:
            names += _yaml_scalars(option.partition("=")[2] or option)
        for name in (*names, *parts):
            content += _digest_of_model(name)
        return sha256(content).hexdigest()[:8]

    def fit(
        self, output: Path, logs: str, options: Mapping[str, Any], *, resume: bool = True
    ) -> str:
        """Trains with logs in OUTPUT/LOGS, or resumes the run that was interrupted there.

        Args:
            output: The folder of the command.
            logs: The folder of the run in it.
            options: Options of `fit` by name; they win over the options of the recipe.
            resume: Whether an earlier run is continued.

        Returns:
            The best checkpoint.

        Raises:
            FerVitError: The training fails, or writes no best checkpoint.
        """
        overrides = dict(options)
        last = newest_checkpoint(output.glob(f"{logs}/*/checkpoints"))
        if resume and last:
            LOGGER.info(f"The training resumes from {last}.")
            overrides["ckpt_path"] = str(last)
        logger = {
            "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
            "init_args": {"save_dir": str(output), "name": logs},
        }
        overrides["trainer.logger"] = logger
        try:
            best = fit(self.config, self.options, **overrides)
        except FinishedError as finished:  # a later part of the command was interrupted
            best = str(finished.best or "")
        if not best:
            raise FerVitError(
                f"Expected a best checkpoint from the config {self.config}, but it wrote none. It "
                "needs a validation in every run, `--checkpoint.monitor` and "
                "`--trainer.enable_checkpointing`."
            )
        return best

    def load(self, checkpoint: str) -> Recognizer:
        """Loads a checkpoint of `fit`, by the class that trained it."""
        if self.model is None:
            return load(checkpoint)
        return load(load_custom(checkpoint, self.model))


def _yaml_scalars(text: str | bytes) -> list[str]:
    """Returns all keys and values of a YAML text; none if the text is not YAML."""
    try:
        events = [*yaml.parse(text, yaml.SafeLoader)]
    except yaml.YAMLError:
        return []
    return [event.value for event in events if isinstance(event, yaml.ScalarEvent)]


def _digest_of_model(name: str) -> bytes:
    """Returns the sha256 of the weights of a checkpoint or folder; empty for other names."""
    # `os.path`, because the methods of `Path` raise an error for a name that is too long
    weights = os.path.join(name, WEIGHTS_FILE) if os.path.isdir(name) else name
    if not os.path.isfile(weights):
        return b""
    with open(weights, "rb") as file:
        return file_digest(file, "sha256").digest()
