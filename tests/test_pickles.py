"""Checkpoints that do what no checkpoint needs: names, types and sizes are refused."""

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
from fer_vit.pickles import UnsafeError, load_tensors
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


# Nine lists, each with the previous one ten times: a thousand million parts.
SHARED = b"]q\x00(K\x01" + b"".join(b"](" + b"h\x00" * 10 + b"eq\x00" for _ in range(9))
# A dictionary with 100,000 keys, and 300 copies of it.
LARGE = b"}q\x01(" + b"".join(b"J" + struct.pack("<i", key) + b"N" for key in range(100_000)) + b"u"
COPIES = b"\x85q\x02R" + b"h\x00h\x02R" * 300
PICKLES = {
    "names _codecs encode": HEX,
    "names builtins bytearray": b"cbuiltins\nbytearray\n" + number(4 * 10**10) + b"\x85R",
    "names torch Tensor": b"ctorch\nTensor\n" + number(10**10) + b"\x85R",
    "names torch._utils _rebuild_sparse_tensor": b"ctorch._utils\n_rebuild_sparse_tensor\n",
    "names torch._utils _rebuild_meta_tensor_no_storage": (
        b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n"
    ),
    "names posix system": b"cposix\nsystem\n" + text("true") + b"\x85R",
    "names posix system (STACK_GLOBAL)": text("posix") + text("system") + b"\x93",
    "value of type set": b"\x8f",
    "value of type bytes": b"C\x01a",
    "too many parts": SHARED,
    "too large": text("x" * 10_000_000),
    "nested too deeply": b"]" * 200 + b"a" * 199,
    "claims more weights than it contains": tensor(10**9, stride=0),
    "claims more weights than it contains (count)": (
        b"](" + tensor(0, stored=0) + b"q\x01" + b"h\x01" * 50_000 + b"e"
    ),
    "more than 100 MB of memory": b"](ccollections\nCounter\nq\x00" + LARGE + COPIES + b"e",
    "more than 100 MB of memory (buffer)": b"\x96" + struct.pack("<Q", 10**9),
    "more than 100 MB of memory (lists)": b"](" + b"]" * 990_000 + b"e",
}


@pytest.mark.parametrize("reason", PICKLES)
def test_what_no_checkpoint_needs_is_refused(reason: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "bad.ckpt", PROTOCOL + PICKLES[reason] + b".", **{"data/0": bytes(4)})
    with pytest.raises(UnsafeError, match=reason.partition(" (")[0]):
        load_tensors(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3).to_sparse(),
        lambda: torch.empty(10**6, 10**6, device="meta"),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        lambda: {1, 2},
        lambda: b"bytes",
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
    with pytest.raises(UnsafeError, match="exactly one pickle"):
        load_tensors(path)


@pytest.mark.parametrize("size", [0, 3, 2**31, 2**40, 2**63 - 1])
def test_a_claimed_number_of_weights_takes_no_memory(size: int, tmp_path: Path) -> None:
    data = PROTOCOL + tensor(1, stored=size) + b"."
    path = packed(tmp_path / "good.ckpt", data, **{"data/0": bytes(8)})
    assert torch.equal(load_tensors(path), torch.zeros(1))


@pytest.mark.parametrize("numel", [3, 2**62])
def test_a_tensor_ends_with_its_storage(numel: int, tmp_path: Path) -> None:
    path = packed(tmp_path / "bad.ckpt", PROTOCOL + tensor(numel) + b".", **{"data/0": bytes(8)})
    with pytest.raises((UnsafeError, RuntimeError)):
        load_tensors(path)


@pytest.mark.slow
def test_many_entries_of_a_zip_file_are_refused(tmp_path: Path) -> None:
    entries = {f"data/{number}": b"" for number in range(200_000)}
    path = packed(tmp_path / "bad.ckpt", PROTOCOL + b"}.", **entries)
    with pytest.raises(UnsafeError, match="more than 100 MB of memory"):
        load_tensors(path)


def test_attributes_in_a_pickle_are_ignored(tmp_path: Path) -> None:
    """They could name a function that a pickler calls, or change what is read next."""
    name = b"ccollections\nOrderedDict\n"
    attributes = b"}" + text("__reduce_ex__") + name + b"sb"
    data = PROTOCOL + b"]" + name + attributes + b")R" + attributes + b"a."
    path = packed(tmp_path / "changed.ckpt", data)
    for _ in range(2):
        (loaded,) = load_tensors(path)
        assert type(loaded) is OrderedDict
        assert not vars(loaded)


def test_the_largest_network_with_its_optimiser_is_read(tmp_path: Path) -> None:
    weights = {f"net.vit.blocks.{number}.attn.qkv.weight": torch.ones(2) for number in range(4000)}
    state = {
        number: dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.ones(2)) for number in range(4000)
    }
    content = {"state_dict": weights, "optimizer_states": [{"state": state}]}
    torch.save(content, tmp_path / "large.ckpt")
    loaded = load_tensors(tmp_path / "large.ckpt")
    assert loaded["state_dict"].keys() == weights.keys()
    assert loaded["optimizer_states"][0]["state"].keys() == state.keys()


HEAVY: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"](" + b"]" * 300_000 + b"e",
    "ordered": lambda: b"](ccollections\nOrderedDict\nq\x01)R" + b"h\x01)R" * 99_990 + b"e",
    "text": lambda: text("\U0001f600" + "a" * 9_900_000),
    "tensors": lambda: b"](" + tensor(1) + b"q\x01" + b"h\x01" * 49_990 + b"e",
    "numbers": lambda: (
        b"](" + b"".join(b"G" + struct.pack(">d", n / 7) for n in range(900_000)) + b"e"
    ),
}
"""Pickles within the limits by what they consist of; some take a second to build."""


def test_peak_growth_counts_memory_that_is_freed_again() -> None:
    assert peak_growth(lambda: None) < 20
    assert 190 < peak_growth(lambda: bytearray(os.urandom(2**20)) * 200) < 250


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_memory_is_bounded_by_the_size_of_the_file(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "bad.ckpt", PROTOCOL + HEAVY[name]() + b".", **{"data/0": bytes(4)})
    small = tmp_path / "small.ckpt"
    torch.save({"a": torch.zeros(2)}, small)
    load_tensors(path)
    grown = peak_growth(lambda: load_tensors(path), lambda: load_tensors(small))
    assert grown <= 3 * path.stat().st_size / 1e6 + 200


def test_a_pickle_that_is_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2), "b": [1, {"c": 2}]}, buffer)
    with zipfile.ZipFile(buffer) as file:
        data = file.read("archive/data.pkl")
    for end in range(len(data)):
        path = packed(tmp_path / "bad.ckpt", data[:end], **{"data/0": bytes(8)})
        with pytest.raises((ValueError, IndexError, KeyError, EOFError, pickle.UnpicklingError)):
            load_tensors(path)
