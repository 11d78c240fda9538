"""Checkpoints that do what no checkpoint needs: calls, keys and sizes are refused before torch
runs them."""

import io
import os
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fer_vit.errors import FerVitError
from fer_vit.pickles import UnsafeError, check_pickle, load_tensors
from fer_vit.store.checkpoint import load_checkpoint
from tests.helpers.memory import peak_growth
from tests.helpers.pickles import HEX, PROTOCOL, packed, text


def number(value: int) -> bytes:
    data = value.to_bytes((value.bit_length() + 8) // 8, "little")
    return b"\x8a" + bytes([len(data)]) + data


def storage(numel: int) -> bytes:
    """A reference to numbers in the entry data/0."""
    described = text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu")
    return b"(" + described + number(numel) + b"tQ"


def tensor(numel: int, stride: int = 1, stored: int = 1) -> bytes:
    size = number(numel) + b"\x85" + number(stride) + b"\x85"
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(stored) + b"K\x00" + size + hooks + b"tR"
    )


SAME_HASH = 2**61 - 1
PICKLES = {
    "names _codecs encode": HEX,
    "names builtins bytearray": b"cbuiltins\nbytearray\n" + number(4 * 10**10) + b"\x85R",
    "names torch Tensor": b"ctorch\nTensor\n" + number(10**10) + b"\x85R",
    "names torch._utils _rebuild_sparse_tensor": b"ctorch._utils\n_rebuild_sparse_tensor\n",
    "names torch._utils _rebuild_meta_tensor_no_storage": (
        b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n"
    ),
    "names posix system": b"cposix\nsystem\n" + text("true") + b"\x85R",
    "calls torch FloatStorage": b"ctorch\nFloatStorage\n" + number(10**10) + b"\x85R",
    "calls collections OrderedDict with tuple": (
        b"ccollections\nOrderedDict\n]((K\x01K\x02\x86K\x03\x86e\x85R"
    ),
    "calls collections Counter with tuple": b"ccollections\nCounter\n](K\x01K\x02\x86e\x85R",
    "calls str with ()": text("x") + b")R",
    "key of type large int": b"}("
    + b"".join(number(SAME_HASH * n) + b"N" for n in range(99))
    + b"u",
    "key of type tuple": b"}(" + b"".join(number(n) + b"\x85N" for n in range(99)) + b"u",
    "key of type float": b"}G" + struct.pack(">d", 1.5) + b"Ns",
    "key of type result of collections OrderedDict": b"}ccollections\nOrderedDict\n)RNs",
    "the opcode EMPTY_SET": b"\x8f",
    "the opcode NEWOBJ": b"ccollections\nOrderedDict\n)\x81",
    "the opcode INST": b"(icollections\nOrderedDict\n",
    "the opcode STACK_GLOBAL": text("posix") + text("system") + b"\x93",
    "the opcode LONG4": b"\x8b" + struct.pack("<i", 2) + b"\x01\x00",
    "changes a dict": b"}}b",
    "changes a result of torch._utils _rebuild_tensor_v2": tensor(1) + b"}b",
    "sets items of a list": b"]K\x01K\x02s",
    "too many parts": b"}" * 1_000_001,
    "too many parts (calls)": b"ccollections\nOrderedDict\nq\x01" + b"h\x01)R" * 100_001,
    "too large": text("x" * 10_000_000),
    "nested too deeply": b"]" * 1000 + b"a" * 999,
    "claims more weights than it contains": tensor(10**9, stride=0),
}


@pytest.mark.parametrize("reason", PICKLES)
def test_what_no_checkpoint_needs_is_refused(reason: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "bad.ckpt", PROTOCOL + PICKLES[reason] + b".", **{"data/0": bytes(4)})
    expected = reason.removesuffix(" (calls)")
    with pytest.raises(UnsafeError) as error:
        load_tensors(path)
    assert expected in str(error.value)
    with pytest.raises(FerVitError, match="cannot be read safely") as line:
        load_checkpoint(path)
    assert "\n" not in str(line.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3).to_sparse(),
        lambda: torch.zeros(3, 3).to_sparse_csr(),
        lambda: torch.empty(10**6, 10**6, device="meta"),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
        lambda: {1, 2},
        lambda: b"bytes",
        lambda: torch.float32,
        lambda: 1j,
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_values_that_no_checkpoint_has_are_one_line(
    make: Callable[[], Any], checkpoint: Path, tmp_path: Path
) -> None:
    state = torch.load(checkpoint, weights_only=True)
    for section in ("state_dict", "hyper_parameters", "callbacks"):
        torch.save(state | {section: state[section] | {"x": make()}}, tmp_path / "bad.ckpt")
        with pytest.raises(FerVitError, match="cannot be read safely") as error:
            load_checkpoint(tmp_path / "bad.ckpt")
        assert "\n" not in str(error.value)


def test_values_of_checkpoints_are_read(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 3)
    content = {
        "state": module.state_dict(),
        "parameter": module.weight,
        "counter": Counter({3: 1, 5: 2}),
        "ordered": OrderedDict(a=[1, (2.5, None, True), {"b": -(10**400)}]),
        "kinds": [torch.ones(2, dtype=kind) for kind in (torch.bool, torch.bfloat16, torch.int64)],
        3: "ä\U0001f600",
    }
    torch.save(content, tmp_path / "good.ckpt")
    loaded = load_tensors(tmp_path / "good.ckpt")
    expected = torch.load(tmp_path / "good.ckpt")
    assert str(loaded) == str(expected)
    assert type(loaded["counter"]) is Counter
    assert isinstance(loaded["parameter"], torch.nn.Parameter)


def test_a_second_pickle_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "bad.ckpt", PROTOCOL + b"}.")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("other/data.pkl", PROTOCOL + HEX + b".")
    with pytest.raises(UnsafeError, match="not exactly one pickle"):
        load_tensors(path)


def test_torch_reads_the_entries_that_were_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path / "good.ckpt", PROTOCOL + b"}.", **{"data/0": bytes(4)})
    # bytes that only the reader of torch may find
    path.write_bytes(path.read_bytes() + b"PK\x05\x06"[:2])
    seen = []

    def load(file: io.BytesIO, **_: Any) -> dict[str, int]:
        with zipfile.ZipFile(file) as again:
            seen.extend(again.namelist())
        return {}

    monkeypatch.setattr(torch, "load", load)
    load_tensors(path)
    assert seen == [f"archive/{name}" for name in ("data.pkl", "byteorder", "version", "data/0")]


@pytest.mark.parametrize("size", [0, 3, 2**31, 2**40, 2**63 - 1])
def test_a_claimed_number_of_weights_takes_no_memory(size: int, tmp_path: Path) -> None:
    data = PROTOCOL + tensor(1, stored=size) + b"."
    path = packed(tmp_path / "bad.ckpt", data, **{"data/0": bytes(8)})
    assert peak(path) < 100


HEAVY: dict[str, Callable[[], bytes]] = {
    "dictionaries": lambda: b"}" * 999_000,
    "lists": lambda: b"]" * 999_000,
    "marks": lambda: b"(" * 999_000,
    "strings": lambda: text("\U0001f600" + "a" * 9_900_000),
    "tensors": lambda: tensor(1) + b"q\x01" + b"h\x01" * 100_000,
    "tuples": lambda: b"K\x01\x85" * 499_000,
    "numbers": lambda: b"".join(b"G" + struct.pack(">d", n / 7) for n in range(990_000)),
    "calls": lambda: b"ccollections\nOrderedDict\nq\x01" + b"h\x01)R" * 99_000,
}
"""Pickles by what they consist of; some take a second to build."""


def peak(path: Path) -> float:
    """Returns by how many MB the memory of a process grows when it tries to load a file."""
    small = path.with_name("small.ckpt")
    torch.save({"a": torch.zeros(2)}, small)
    return peak_growth(lambda: load_tensors(path), lambda: load_tensors(small))


def test_peak_growth_counts_memory_that_is_freed_again() -> None:
    assert peak_growth(lambda: None) < 20
    assert 190 < peak_growth(lambda: bytearray(os.urandom(2**20)) * 200) < 250


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_memory_is_bounded_by_the_size_of_the_file(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "bad.ckpt", PROTOCOL + HEAVY[name]() + b".", **{"data/0": bytes(4)})
    assert peak(path) <= 3 * path.stat().st_size / 1e6 + 100


def test_a_pickle_that_is_cut_anywhere_is_an_error() -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2), "b": [1, {"c": 2}]}, buffer)
    with zipfile.ZipFile(buffer) as file:
        data = file.read("archive/data.pkl")
    check_pickle(data)
    for end in range(len(data)):
        with pytest.raises((ValueError, IndexError, KeyError)):
            check_pickle(data[:end])
    assert data[:1] == pickle.PROTO
