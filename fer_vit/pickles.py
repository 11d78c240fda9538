"""Reads untrusted checkpoints of torch without torch's unpickler.

The pickle is read in a child process with limits (`parse_apart`), by an unpickler that knows only
the few functions of a checkpoint, and describes tensors instead of making them.
"""

import io
import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import ZipFile

from fer_vit.errors import short
from fer_vit.system.untrusted import MEGA, TooHeavyError, parse_apart

if TYPE_CHECKING:  # the child process does not import torch
    from torch import Tensor

# Limits of the child process. A checkpoint of fer-vit's largest network, with its optimiser, has
# 7,000 tensors, a pickle of 2 MB, and takes 20 MB.
MAX_MEMORY = 100 * MEGA
MAX_SECONDS = 60

MAX_PICKLE = 10 * MEGA  # bytes of a pickle: names, shapes and settings
MAX_PARTS = 1_000_000  # parts of all lists and dictionaries; a shared list counts at each use
MAX_TENSORS = 50_000
MAX_NESTING = 100  # levels of nested lists and dictionaries

# The types of numbers in torch, by the names of their storages.
NUMBERS = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}
TYPES = {f"torch {name}Storage": kind for name, kind in NUMBERS.items()}


class UnsafeError(ValueError):
    """A checkpoint that does something that no checkpoint needs."""


class StoredTensor(NamedTuple):
    """A tensor that is not read yet."""

    kind: str  # the type of its numbers
    entry: str  # the name of its storage in the zip file
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    is_parameter: bool = False


def load_tensors(path: Path) -> Any:
    """Loads a file of `torch.save` on the CPU, without running code in it.

    Beside the weights, loading takes at most `MAX_MEMORY` in the child process, and about twice as
    much here.

    Raises:
        UnsafeError: The file has functions, types or sizes that no checkpoint needs.
        Exception: The file is damaged; the error may have any type.
    """
    try:
        (content,) = parse_apart(read_pickle, path, memory=MAX_MEMORY, seconds=MAX_SECONDS)
    except TooHeavyError as error:
        raise UnsafeError(str(error)) from error
    with ZipFile(path) as file:
        return _Builder(file, 2 * path.stat().st_size).build(content)


def read_pickle(path: Path) -> Iterator[Any]:
    """Yields the content of a file of `torch.save`, with `StoredTensor` for each tensor."""
    with ZipFile(path) as file:
        if sum(entry.file_size for entry in file.infolist()) > path.stat().st_size:
            raise UnsafeError("it is compressed")  # torch writes no compressed files
        pickles = [name for name in file.namelist() if PurePosixPath(name).name == "data.pkl"]
        if len(pickles) != 1:
            raise UnsafeError("it doesn't have exactly one pickle")
        if file.getinfo(pickles[0]).file_size > MAX_PICKLE:
            raise UnsafeError("its pickle is too large")
        folder = PurePosixPath(pickles[0]).parent
        yield _Unpickler(io.BytesIO(file.read(pickles[0])), folder).load()


class _Unpickler(pickle.Unpickler):  # noqa: S301 - `find_class` refuses other names
    """Reads a pickle that names no other function or class than `FUNCTIONS` and `TYPES`."""

    def __init__(self, file: io.BytesIO, folder: PurePosixPath) -> None:
        super().__init__(file)
        self._folder = folder

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a name stands for."""
        full_name = f"{module} {name}"
        if full_name in TYPES:
            return TYPES[full_name]
        if full_name not in FUNCTIONS:
            raise UnsafeError(f"its pickle names {short(full_name)}")
        # a new function, because a pickle may set attributes of what it names
        return lambda *arguments: FUNCTIONS[full_name](*arguments)

    def persistent_load(self, description: Any) -> tuple[str, str]:
        """Returns the type of the numbers in a storage, and the name of its entry."""
        _, kind, key, _, _ = description
        return kind, str(self._folder / "data" / key)


def _describe_tensor(
    storage: tuple[str, str],
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    *_: object,  # hooks and metadata, which fer-vit does not use
) -> StoredTensor:
    kind, entry = storage
    return StoredTensor(kind, entry, offset, size, stride, requires_grad)


def _describe_parameter(tensor: StoredTensor, requires_grad: bool, _: object) -> StoredTensor:
    return tensor._replace(requires_grad=requires_grad, is_parameter=True)


class Items(dict[Any, Any]):
    """An OrderedDict without attributes, which could command a pickler."""

    __slots__ = ()

    def __setstate__(self, attributes: object) -> None:
        """Ignores attributes of the dictionary, such as the versions of torch's modules."""


class Counts(Items):
    """A Counter."""

    __slots__ = ()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collections OrderedDict": Items,
    "collections Counter": Counts,
    "torch._utils _rebuild_tensor_v2": _describe_tensor,
    "torch._utils _rebuild_parameter": _describe_parameter,
}


DICTIONARIES: dict[type, type] = {dict: dict, Items: OrderedDict, Counts: Counter}


class _Builder:
    """Builds the content of a checkpoint from what `read_pickle` yields."""

    def __init__(self, file: ZipFile, max_bytes: int) -> None:
        self._file = file
        self._bytes_left = max_bytes  # bytes of further tensors
        self._parts_left = MAX_PARTS
        self._tensors_left = MAX_TENSORS
        self._storages: dict[str, bytearray] = {}

    def build(self, value: Any, depth: int = 0) -> Any:
        """Returns a copy of a value with its tensors."""
        self._parts_left -= 1
        if self._parts_left < 0:
            raise UnsafeError("its lists have too many parts")
        if depth > MAX_NESTING:
            raise UnsafeError("its lists are nested too deeply")
        if isinstance(value, StoredTensor):
            return self._build_tensor(value)
        if type(value) in DICTIONARIES:
            built = DICTIONARIES[type(value)]()
            for key, part in value.items():
                built[key] = self.build(part, depth + 1)
            return built
        if type(value) in (list, tuple):
            return type(value)(self.build(part, depth + 1) for part in value)
        if not isinstance(value, str | int | float | None):
            raise UnsafeError(f"it has a value of type {type(value).__name__}")
        return value

    def _build_tensor(self, stored: StoredTensor) -> "Tensor":
        import torch

        if stored.kind not in TYPES.values():
            raise UnsafeError("it has tensors that are not plain numbers")
        kind = getattr(torch, stored.kind)
        self._bytes_left -= math.prod(stored.size) * kind.itemsize
        self._tensors_left -= 1
        if self._bytes_left < 0 or self._tensors_left < 0:
            raise UnsafeError("it claims more weights than it contains")
        if stored.entry not in self._storages:
            self._storages[stored.entry] = bytearray(self._file.read(stored.entry))
        data = self._storages[stored.entry]
        numbers = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
        tensor = numbers.as_strided(stored.size, stored.stride, stored.offset)
        if stored.is_parameter:
            return torch.nn.Parameter(tensor, stored.requires_grad)
        return tensor.requires_grad_(stored.requires_grad)
