"""Untrusted checkpoints of torch: the effect of a pickle is computed before torch reads the pickle.

torch's restricted unpickler runs no code from the file. But a kilobyte of allowed calls can fill
all memory, and many keys with the same hash can take hours. A checkpoint needs few opcodes and
calls. All other opcodes and calls are refused.
"""

import io
import pickletools
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch
from torch import Tensor

from fer_vit.errors import short

# Largest pickle in bytes. A pickle contains names, shapes and settings: 0.5 MB for 1,000 weights
# and the state of an optimizer.
MAX_PICKLE = 10_000_000

MAX_CALLS = 100_000  # most objects that a pickle may build by calls: tensors and dictionaries
MAX_OPCODES = 1_000_000
MAX_NESTING = 100  # most levels of nested lists and dictionaries

# Most parts of all lists and dictionaries. A pickle can use one list many times, so its parts are
# counted at each use.
MAX_PARTS = 10_000_000

NUMBERS = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
STORAGES = frozenset(f"torch {name}Storage" for name in NUMBERS)
ORDERED = "collections OrderedDict"

# Functions that a pickle may call only with these arguments.
CALLS = {ORDERED: "()", "collections Counter": "(dict)"}

# Functions that a pickle may call with any arguments.
REBUILDS = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter")

DICTIONARIES = ("dict", ORDERED)

# Allowed kinds of keys. With keys of other kinds, a file can contain many keys with the same hash,
# and a dictionary then compares each key with all earlier keys.
KEYS = ("str", "int")

MAX_KEY = 2**60  # whole numbers below this number have different hashes
CONSTANTS = {  # opcodes that push one value, and the kind of the value
    "BINUNICODE": "str",
    "SHORT_BINUNICODE": "str",
    "BINFLOAT": "float",
    "NONE": "None",
    "NEWTRUE": "bool",
    "NEWFALSE": "bool",
    "EMPTY_DICT": "dict",
    "EMPTY_LIST": "list",
    "EMPTY_TUPLE": "()",
}
RESULT = "result of "


class UnsafeError(ValueError):
    """A checkpoint that does something that no checkpoint needs."""


def load_tensors(path: Path) -> Any:
    """Loads a file of `torch.save` on the CPU, without running code in it.

    Loading needs at most 100 MB of memory plus three times the size of the file.

    Raises:
        UnsafeError: The file has calls, keys or sizes that no checkpoint needs.
        Exception: The file is damaged; the error may have any type.
    """
    content = torch.load(io.BytesIO(_packed_again(path)), map_location="cpu", weights_only=True)
    tensors = collect_tensors(content)
    if sum(tensor.nbytes for tensor in tensors) > 2 * path.stat().st_size:
        raise UnsafeError("it claims more weights than it contains")
    return content


def _packed_again(path: Path) -> bytes:
    """Returns the entries of a zip file as a new zip file.

    In an original file, torch's reader may find other entries than Python's reader, which checks
    the file. In the new file, both find the same entries.
    """
    packed = io.BytesIO()
    with ZipFile(path) as file, ZipFile(packed, "w", ZIP_STORED) as copy:
        if sum(entry.file_size for entry in file.infolist()) > path.stat().st_size:
            raise UnsafeError("it is compressed")  # torch writes no compressed files
        pickles = [name for name in file.namelist() if PurePosixPath(name).name == "data.pkl"]
        if len(pickles) != 1:
            raise UnsafeError("it has not exactly one pickle")
        if file.getinfo(pickles[0]).file_size > MAX_PICKLE:
            raise UnsafeError("its pickle is too large")
        folder = PurePosixPath(pickles[0]).parent
        check_pickle(file.read(pickles[0]))
        for name in dict.fromkeys(file.namelist()):
            if PurePosixPath(name).is_relative_to(folder):
                copy.writestr(name, file.read(name))
    return packed.getvalue()


def check_pickle(data: bytes) -> None:
    """Raises UnsafeError for opcodes, calls and keys that no checkpoint needs. Runs no code."""
    kinds = _Kinds()
    for number, (opcode, value, _) in enumerate(pickletools.genops(data)):
        if number >= MAX_OPCODES:
            raise UnsafeError("its pickle has too many parts")
        if opcode.name in CONSTANTS:
            kinds.stack.append(CONSTANTS[opcode.name])
        elif opcode.name in OPCODES:
            OPCODES[opcode.name](kinds, value)
        else:
            raise UnsafeError(f"its pickle has the opcode {opcode.name}")


class _Kinds:
    """The stack of an unpickler, with kinds of values in place of the values.

    Each method is the effect of one or more opcodes.
    """

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.marks: list[int] = []  # lengths of the stack at the opcode MARK
        self.memo: dict[int, str] = {}
        self.calls = 0

    def start(self, _: Any) -> None:
        """Does nothing, for the opcodes of the version and of the end."""

    def integer(self, value: int) -> None:
        """Pushes a number."""
        self.stack.append("int" if abs(value) < MAX_KEY else "large int")

    def name(self, value: str) -> None:
        """Pushes a function or class."""
        if value not in CALLS and value not in REBUILDS and value not in STORAGES:
            raise UnsafeError(f"its pickle names {short(value)}")
        self.stack.append(value)

    def storage(self, _: Any) -> None:
        """Replaces a description by the numbers in another entry of the zip file."""
        self.stack[-1] = "storage"

    def put(self, index: int) -> None:
        """Stores the last value in the memo."""
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        """Pushes a value from the memo."""
        self.stack.append(self.memo[index])

    def mark(self, _: Any) -> None:
        """Marks the start of several values."""
        self.marks.append(len(self.stack))

    def take(self, start: int) -> list[str]:
        """Removes and returns the values from an index on."""
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def tuple_of(self, values: list[str]) -> None:
        """Pushes a tuple of values."""
        self.stack.append("(dict)" if values == ["dict"] else "tuple")

    def set_items(self, values: list[str]) -> None:
        """Adds alternating keys and values to the dictionary at the top of the stack."""
        target = self.stack[-1].removeprefix(RESULT)
        if target not in DICTIONARIES:
            raise UnsafeError(f"its pickle sets items of a {target}")
        for key in values[::2]:
            if key not in KEYS:
                raise UnsafeError(f"its pickle has a key of type {key}")

    def call(self, _: Any) -> None:
        """Replaces a function and its arguments by the result."""
        function, arguments = self.take(-2)
        if function not in REBUILDS and CALLS.get(function) != arguments:
            raise UnsafeError(f"its pickle calls {function} with {arguments}")
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise UnsafeError("its pickle has too many parts")
        self.stack.append(f"{RESULT}{function}")

    def build(self, _: Any) -> None:
        """Sets attributes of a value."""
        state = self.stack.pop()
        if (self.stack[-1], state) != (f"{RESULT}{ORDERED}", "dict"):
            raise UnsafeError(f"its pickle changes a {self.stack[-1]}")


# The methods for opcodes. All other opcodes are refused.
OPCODES: dict[str, Callable[[_Kinds, Any], object]] = {
    "PROTO": _Kinds.start,
    "STOP": _Kinds.start,
    "BININT": _Kinds.integer,
    "BININT1": _Kinds.integer,
    "BININT2": _Kinds.integer,
    "LONG1": _Kinds.integer,
    "GLOBAL": _Kinds.name,
    "BINPERSID": _Kinds.storage,
    "BINPUT": _Kinds.put,
    "LONG_BINPUT": _Kinds.put,
    "BINGET": _Kinds.get,
    "LONG_BINGET": _Kinds.get,
    "MARK": _Kinds.mark,
    "TUPLE": lambda kinds, _: kinds.tuple_of(kinds.take(kinds.marks.pop())),
    "TUPLE1": lambda kinds, _: kinds.tuple_of(kinds.take(-1)),
    "TUPLE2": lambda kinds, _: kinds.tuple_of(kinds.take(-2)),
    "TUPLE3": lambda kinds, _: kinds.tuple_of(kinds.take(-3)),
    "APPEND": lambda kinds, _: kinds.take(-1),
    "APPENDS": lambda kinds, _: kinds.take(kinds.marks.pop()),
    "SETITEM": lambda kinds, _: kinds.set_items(kinds.take(-2)),
    "SETITEMS": lambda kinds, _: kinds.set_items(kinds.take(kinds.marks.pop())),
    "REDUCE": _Kinds.call,
    "BUILD": _Kinds.build,
}


def collect_tensors(content: Any) -> list[Tensor]:
    """Returns the tensors in nested lists and dictionaries, each once.

    Raises:
        UnsafeError: The nesting is too deep, there are too many parts when repeated lists are
            counted at each use, or a tensor is not plain numbers in memory (sparse, quantised,
            nested, or not on the CPU).
    """
    counts: dict[int, int] = {}  # the number of parts by the identity of a list or dictionary
    tensors: dict[int, Tensor] = {}

    def visit(value: Any, depth: int) -> int:  # returns the number of parts
        if isinstance(value, Tensor):
            is_plain = value.layout == torch.strided and not value.is_nested
            if not is_plain or value.is_quantized or value.device.type != "cpu":
                raise UnsafeError("it has tensors that are not plain numbers")
            tensors[id(value)] = value
            return 1
        if not isinstance(value, dict | list | tuple):
            return 1
        if id(value) not in counts:
            if depth > MAX_NESTING:
                raise UnsafeError("its lists are nested too deeply")
            counts[id(value)] = 1 + sum(visit(part, depth + 1) for part in _parts(value))
        if counts[id(value)] > MAX_PARTS:
            raise UnsafeError("its lists have too many parts")
        return counts[id(value)]

    visit(content, 0)
    return list(tensors.values())


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> list[Any]:
    """Returns the values in a list, or the values and attributes of a dictionary."""
    if not isinstance(value, dict):
        return list(value)
    parts = list(value.values())
    if hasattr(value, "__dict__"):  # an OrderedDict may have attributes
        parts += vars(value).values()
    return parts
