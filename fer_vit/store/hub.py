"""Finds the folder of a model by name: in the package, on disk or on the Hugging Face hub.

This module also publishes a folder on the hub. `store.model_folder` reads and writes the files in a
folder.
"""

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from fer_vit.errors import FerVitError, ModelError, suggest
from fer_vit.texts import check_permission

SHIPPED = Path(__file__).parents[1] / "weights"  # contains a folder for each shipped model
DEFAULT_MODEL = "ferplus-fairface"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
ENGINE_FILES = {"float32": "model.onnx", "int8": "model.int8.onnx"}  # by precision
# the files that are published and downloaded
MODEL_FILES = [CONFIG_FILE, WEIGHTS_FILE, *ENGINE_FILES.values(), CARD_FILE]
MAX_CONFIG = 1_000_000  # most characters of settings in JSON; the shipped models have 2,000
MAX_MODEL_BYTES = 10_000_000_000  # largest download from the hub; timm's largest models have 8 GB


def fetch_folder(name: str | Path, **download_options: Any) -> Path:
    """Returns the folder of a model in the package, on disk or in the hub's cache.

    Downloads the model from the hub unless it is cached.

    Args:
        name: A shipped model, a folder, or "user/name" on the hub.
        **download_options: Arguments of `huggingface_hub.snapshot_download`, such as `revision`,
            `token` or `local_files_only`.

    Raises:
        FerVitError: There is no such model, or the hub cannot be reached.
    """
    models = shipped_models()
    if isinstance(name, str) and name in models:  # a Path is the path of a folder
        return models[name]
    if str(name) and Path(name).is_dir():
        return Path(name)

    # A caller loads a checkpoint itself. Only a misspelled path of a checkpoint comes here.
    expected = (
        f"Expected a shipped model ({', '.join(models)}), "
        "a checkpoint, a folder or user/name on the hub"
    )
    if str(name).count("/") != 1:  # not user/name
        raise ModelError(f"{expected}, but there is no {name}.{suggest(str(name), models)}")
    try:
        return _download(str(name), **download_options)
    except FerVitError:
        raise
    # Errors of the hub, the disk and the HTTP client have no common class, and the HTTP client
    # depends on the version of huggingface_hub.
    except Exception as error:
        raise ModelError(
            f"{expected}, but cannot get {name} from the hub ({_reason(error)})."
        ) from error


def _download(name: str, **options: Any) -> Path:
    """Returns the cached folder of a model after downloading missing files over https.

    Raises ModelError for a model above `MAX_MODEL_BYTES`, or for weights with a wrong hash.
    """
    # not at the top: the import takes a third of a second, and most models are on the disk
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    if not options.get("local_files_only"):
        _check_endpoint()
        with suppress(DryRunError):  # the hub does not answer, but the cache may have the model
            files = snapshot_download(name, allow_patterns=MODEL_FILES, dry_run=True, **options)
            size = sum(file.file_size or 0 for file in files)
            if size > MAX_MODEL_BYTES:
                raise ModelError(
                    f"Expected at most {MAX_MODEL_BYTES:,} bytes of {name} on the hub, "
                    f"but it has {size:,}."
                )

    folder = Path(snapshot_download(name, allow_patterns=MODEL_FILES, **options))
    for name_of_file in (WEIGHTS_FILE, *ENGINE_FILES.values()):
        blob = (folder / name_of_file).resolve()  # the cache names large files by their sha256
        if blob.is_file() and re.fullmatch("[0-9a-f]{64}", blob.name):
            with blob.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != blob.name:
                raise ModelError(
                    f"Expected sha256 {blob.name} of {blob}, but got {digest}. "
                    "Remove it and download it again."
                )
    return folder


def shipped_models() -> dict[str, Path]:
    """Returns the folders of the shipped models by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{CONFIG_FILE}"))}


def is_checkpoint(name: str | Path) -> bool:
    """Returns whether a name is the path of a checkpoint, and not of a folder or on the hub."""
    return Path(name).is_file() or Path(name).suffix == ".ckpt"


def check_model_folder(folder: Path, name: str | Path) -> None:
    """Raises FerVitError when a folder lacks settings or weights. The message names `name`."""
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        check_has(folder, file, name)


def check_has(folder: Path, file: str, name: str | Path) -> None:
    """Raises FerVitError when the folder of a model lacks a file. The message names `name`."""
    if not (folder / file).is_file():
        raise ModelError(
            f"{name} has no {file}. Name a folder that `fer-vit export` wrote, or a checkpoint."
        )


def read_config(folder: Path, name: str | Path) -> Any:
    """Returns the content of a folder's config.json. Messages call the model `name`.

    Raises FerVitError when it is missing or cannot be read.
    """
    check_has(folder, CONFIG_FILE, name)
    try:
        if (folder / CONFIG_FILE).stat().st_size > MAX_CONFIG:
            raise ModelError(
                f"Expected a {CONFIG_FILE} of at most {MAX_CONFIG:,} bytes in {name}, but it is "
                "larger."
            )
        return json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable_model(folder, name, error) from error


def unreadable_model(folder: Path, name: str | Path, error: Exception) -> ModelError:
    """Returns the error for a model whose files cannot be read.

    Raises FerVitError when the permission is missing.
    """
    check_permission(folder, error)
    return ModelError(f"The model {name} cannot be read ({error}). Download or export it again.")


def push(folder: str | Path, name: str, *, private: bool = False, token: str | None = None) -> str:
    """Publishes a folder of `fer-vit export` on the Hugging Face hub.

    Args:
        folder: The folder. Weights, settings and model card are published, but no other files.
        name: "user/name" on the hub. The repository is created unless it exists.
        private: Whether a new repository is private.
        token: An access token of the hub. None: the token of your login.

    Returns:
        The URL of the commit.

    Raises:
        FerVitError: The folder is not a model, or the hub cannot be reached or rejects the model.
    """
    check_model_folder(Path(folder), folder)
    _check_endpoint()
    from huggingface_hub import HfApi  # not at the top, as in `_download`

    api = HfApi(token=token)
    try:
        repo = api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo.repo_id, folder_path=folder, allow_patterns=MODEL_FILES
        )
    except Exception as error:  # as in `fetch_folder`
        raise FerVitError(
            f"Cannot push {folder} to {name} ({_reason(error)}). Check the name and log in."
        ) from error
    return commit.commit_url


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _check_endpoint() -> None:
    from huggingface_hub import constants  # not at the top, as in `_download`

    if not constants.ENDPOINT.startswith("https://"):
        raise FerVitError(
            f"Expected HF_ENDPOINT to begin with https://, but got {constants.ENDPOINT}. Change it."
        )
