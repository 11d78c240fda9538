"""Stores uploads: photos and clips in a form or in JSON are written to the folder of a job.

A form is parsed by python-multipart, so that files are written as they arrive. Starlette's forms
keep files in memory or in unnamed temporary files. Such a file must be copied to get a name, so
each byte would be on the disk twice.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Collection
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fer_vit.heads import EXPRESSION, HEADS

MAX_FILES = 20  # most photos and clips in a request
MAX_FIELDS = 12  # most fields of a form that are not files
MAX_FIELD = 1000  # most bytes of a field that is not a file
# Most bytes of a request in JSON. One such request at a time is read into memory.
MAX_JSON = 16_000_000
MAX_STEM_LENGTH = 50  # most characters of the name of an upload, without the suffix
# A longer name keeps this number of characters at its start, and at its end.
NAME_PART = MAX_STEM_LENGTH // 2 - 1
FORM = "multipart/form-data"
JSON = "application/json"
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


class Options(BaseModel):
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


class EncodedFile(BaseModel):
    """A photo or clip in JSON."""

    name: str = Field("photo", description="The file's name; it becomes the column `path`.")
    data: str = Field(description="The file in base64, or a data URL with it.")


class JsonUpload(Options):
    """A request in JSON."""

    files: list[EncodedFile] = Field(min_length=1, max_length=MAX_FILES)


class Upload(NamedTuple):
    """A request with stored files."""

    names: list[str]  # the names of the files in the folder of uploads
    options: Options


class BodyReader(Protocol):
    """Stores the body of a request."""

    def write(self, data: bytes) -> None:
        """Stores a part of the body."""

    def finish(self) -> Upload:
        """Returns the stored upload. Raises ValidationError or HTTPException when it is invalid."""


async def store(
    body: AsyncIterator[bytes], content_type: str, folder: Path, one_at_a_time: asyncio.Lock
) -> Upload:
    """Stores the files of a request in a folder. Raises HTTPException when the request is refused.

    Parsing and writing run in threads, so that a slow disk does not delay other clients. With the
    lock, only one request in JSON is in memory at a time.
    """
    try:
        reader = open_reader(content_type, folder)
        async for data in body:
            if data:  # the last part is empty
                await asyncio.to_thread(reader.write, data)
        async with one_at_a_time:
            return await asyncio.to_thread(reader.finish)
    except ValidationError as error:
        raise HTTPException(422, describe_errors(error.errors())) from error
    except FormParserError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "The client has left.") from error
    except OSError as error:
        raise HTTPException(413, f"The upload cannot be stored ({error.strerror}).") from error


def open_reader(content_type: str, folder: Path) -> BodyReader:
    """Returns the reader for a content type. Raises HTTPException for an unknown content type."""
    media_type, options = parse_options_header(content_type)
    if media_type == JSON.encode():
        return JsonReader(folder)
    if media_type == FORM.encode() and b"boundary" in options:
        return FormReader(folder, options[b"boundary"])
    raise HTTPException(422, f"Expected `{FILES_FIELD}` in a form ({FORM}) or in JSON ({JSON}).")


def describe_errors(errors: Collection[Any]) -> str:
    """Returns a sentence for each of Pydantic's errors.

    The invalid value is left out, since it may have characters that cannot be encoded.
    """
    return " ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}." for error in errors)


class FormReader:
    """Writes the files of a form to a folder as they arrive, and collects the other fields.

    A file is opened again for each part of its data, so that hundreds of uploads need no more file
    descriptors than connections.
    """

    def __init__(self, folder: Path, boundary: bytes) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._fields: dict[str, str | list[str]] = {}
        self._num_fields = 0  # the number of fields so far that are not files
        # the current part of the form:
        self._headers: dict[bytes, bytes] = {}
        self._header = b""  # the name of the current header
        self._value = b""  # the value of the current header
        self._field: str | None = None  # the name of the current field; None: a file
        self._data = bytearray()  # the data of the field, or the data of the file to be written
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._headers.clear,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
            },
        )

    def write(self, data: bytes) -> None:
        """Stores a part of the form."""
        self._parser.write(data)
        if self._field is None:
            self._append()

    def finish(self) -> Upload:
        """Returns the stored upload."""
        self._parser.finalize()
        options = Options.model_validate(self._fields)
        if not self._names:
            raise HTTPException(422, f"{FILES_FIELD}: Field required.")
        return Upload(self._names, options)

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = b""
        self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode(errors="replace")
        if name == FILES_FIELD:
            file = options.get(b"filename", b"").decode(errors="replace")
            self._start_file(file)
        else:
            self._start_field(name)

    def _start_file(self, name: str) -> None:
        if len(self._names) == MAX_FILES:
            raise HTTPException(400, f"At most {MAX_FILES} files can be sent at a time.")
        self._field = None
        self._names.append(safe_name(name, self._names))
        (self._folder / self._names[-1]).touch(exist_ok=False)

    def _start_field(self, name: str) -> None:
        if self._num_fields == MAX_FIELDS:
            raise HTTPException(
                400, f"At most {MAX_FIELDS} fields can be sent beside `{FILES_FIELD}`."
            )
        self._num_fields += 1
        self._field = name

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._data += data[start:end]
        if self._field is not None and len(self._data) > MAX_FIELD:
            raise HTTPException(400, f"A field has at most {MAX_FIELD:,} bytes.")

    def _on_part_end(self) -> None:
        if self._field is None:
            self._append()
        else:
            value = self._data.decode(errors="replace")
            self._data.clear()
            if value:  # an empty field counts as left out
                self._add_value(self._field, value)

    def _add_value(self, name: str, value: str) -> None:
        if name != OUTPUTS_FIELD:
            self._fields[name] = value
            return
        values = self._fields.setdefault(OUTPUTS_FIELD, [])
        assert isinstance(values, list)
        values.append(value)

    def _append(self) -> None:
        """Moves the data in memory to the end of the current file."""
        if self._data:
            with (self._folder / self._names[-1]).open("ab") as file:
                file.write(self._data)
            self._data.clear()


class JsonReader:
    """Stores a request in JSON; writes its files when the request is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._body = folder.parent / "request.json"
        self._size = 0

    def write(self, data: bytes) -> None:
        """Stores a part of the JSON."""
        self._size += len(data)
        if self._size > MAX_JSON:
            limit = f"JSON has at most {MAX_JSON // 10**6} MB"
            raise HTTPException(413, f"{limit}. Send larger files as a form ({FORM}).")
        with self._body.open("ab") as file:
            file.write(data)

    def finish(self) -> Upload:
        """Writes the files; returns the stored upload."""
        upload = JsonUpload.model_validate_json(self._body.read_bytes())
        self._body.unlink()
        names: list[str] = []
        for number, file in enumerate(upload.files):
            content = decode_base64(file.data, f"{FILES_FIELD}.{number}.data")
            names.append(safe_name(file.name, names))
            (self._folder / names[-1]).write_bytes(content)
        return Upload(names, upload)


def decode_base64(text: str, field: str) -> bytes:
    """Decodes base64, or a data URL. Raises HTTPException with the name of the field."""
    try:
        return base64.b64decode(text.rpartition(";base64,")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise HTTPException(422, f"{field}: Expected base64.") from error


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
