"""Stores uploads: the photos and clips of a form are copied to the folder of a job."""

import asyncio
import re
import shutil
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from fer_vit.heads import EXPRESSION, HEADS

MAX_FILES = 20  # most photos and clips in a request
MAX_FIELDS = 12  # most fields of a form that are not files
MAX_FIELD = 1024  # most bytes of a field that is not a file
MAX_UPLOAD_SECONDS = 3600.0  # most seconds until an upload is complete
MAX_STEM_LENGTH = 50  # most characters of the name of an upload, without the suffix
# A longer name keeps this number of characters at its start, and at its end.
NAME_PART = MAX_STEM_LENGTH // 2 - 1
FORM = "multipart/form-data"
FILES_FIELD = "files"  # the name of the field of files
OUTPUTS_FIELD = "outputs"  # the name of the only other field that a form may repeat


def output_names() -> list[str]:
    """Returns the names that choose columns: "expression" and the heads, as in `Field.head`."""
    return [EXPRESSION, *HEADS]


def check_output_names(names: list[str]) -> list[str]:
    """Returns `names`. Raises PydanticCustomError when a name is unknown, or for too many names."""
    known = output_names()
    if len(names) > len(known) or not set(names) <= set(known):
        raise PydanticCustomError("outputs", f"Expected outputs among {', '.join(known)}")
    return names


def describe_output_names(schema: dict[str, Any]) -> None:
    """Adds the names that choose columns to the JSON schema of a list."""
    known = output_names()
    schema["maxItems"] = len(known)
    schema["items"]["enum"] = known


class FormOptions(BaseModel):
    """The options of a request."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str = Field("", description="The model; left out: the first of `/api/models`.")
    fps: float | None = Field(
        None, gt=0, le=1000, description="Frames of a clip per second; left out: all."
    )
    start: float = Field(0, ge=0, le=1e6, description="Second of a clip at which to start.")
    end: float | None = Field(
        None, ge=0, le=1e6, description="Second of a clip at which to end; left out: its end."
    )
    explain: bool = Field(
        True, description="Whether a report explains the faces; without, it has only tables."
    )
    outputs: Annotated[list[str], AfterValidator(check_output_names)] = Field(
        [],
        json_schema_extra=describe_output_names,
        description="The columns of the table of faces, of what `/api/outputs` lists for the "
        "model: `expression` and the model's further heads; a form repeats the field. Left out: "
        "all.",
    )


class Upload(NamedTuple):
    """A request with stored files."""

    names: list[str]  # the names of the files in the folder of uploads
    options: FormOptions


class UploadParser(MultiPartParser):
    """Parses a form; files above `spool_max_size` bytes are on the disk while they arrive."""

    spool_max_size = 2**16


async def store(request: Request, folder: Path, one_at_a_time: asyncio.Lock) -> Upload:
    """Stores the files of a request in a folder. Raises HTTPException when the request is refused.

    Files are written in threads, so that a slow disk does not delay other clients. A complete form
    is on the disk twice while its files are copied; with the lock, only one form at a time is.
    """
    if not request.headers.get("content-type", "").lower().startswith(FORM):
        raise HTTPException(422, f"Expected `{FILES_FIELD}` in a form ({FORM}).")
    parser = UploadParser(
        request.headers,
        request.stream(),
        max_files=MAX_FILES,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD,
    )
    try:
        async with asyncio.timeout(MAX_UPLOAD_SECONDS):
            form = await parser.parse()
        try:
            options = FormOptions.model_validate(option_values(form))
            async with one_at_a_time:
                names = await asyncio.to_thread(copy_files, form, folder)
        finally:
            await form.close()
    except ValidationError as error:
        raise HTTPException(422, describe_errors(error.errors())) from error
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error
    except UnicodeError as error:  # a form may name any encoding of Python
        raise HTTPException(400, "The form cannot be read.") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "The client has left.") from error
    except TimeoutError as error:
        raise HTTPException(408, "The upload is too slow.") from error
    except OSError as error:
        raise HTTPException(413, f"The upload cannot be stored ({error.strerror}).") from error
    if not names:
        raise HTTPException(422, f"{FILES_FIELD}: Field required.")
    return Upload(names, options)


def option_values(form: FormData) -> dict[str, Any]:
    """Returns the values of a form's options by name. An empty field counts as left out."""
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) or not value:
            continue
        if name == OUTPUTS_FIELD:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    return values


def copy_files(form: FormData, folder: Path) -> list[str]:
    """Copies the files of a form to a folder; returns their names there."""
    names: list[str] = []
    for upload in form.getlist(FILES_FIELD):
        if isinstance(upload, UploadFile):
            names.append(safe_name(upload.filename or "", names))
            with (folder / names[-1]).open("xb") as file:
                shutil.copyfileobj(upload.file, file)
    return names


def describe_errors(errors: Collection[Any]) -> str:
    """Returns a sentence for each of Pydantic's errors.

    The invalid value is left out, since it may have characters that cannot be encoded.
    """
    return " ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}." for error in errors)


def safe_name(name: str, taken: Collection[str]) -> str:
    """Returns a name for an upload without folders and unusual characters, not in `taken`."""
    base = PurePosixPath(re.sub(r"[^\w .()/-]", "_", name.replace("\\", "/")))
    stem = base.stem.lstrip(" .-") or "photo"
    if len(stem) > MAX_STEM_LENGTH:  # the end is kept, since names in a study differ at the end
        stem = f"{stem[:NAME_PART]}..{stem[-NAME_PART:]}"
    suffix = base.suffix[:10]
    lower = {known.lower() for known in taken}
    number = 0
    safe = f"{stem}{suffix}"
    while safe.lower() in lower:
        number += 1
        safe = f"{stem} ({number}){suffix}"
    return safe
