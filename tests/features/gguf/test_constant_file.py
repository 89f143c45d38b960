"""Constants of GGUF files are the same on disk and in memory. They are in memory if the disk cannot hold them."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest

from lean_ovms.engine.loading import weight_pages
from lean_ovms.features.gguf.child import constant_file
from lean_ovms.features.gguf.child.constant_file import ConstantFile, NewConstant, is_local
from tests.engine.paged.test_zoo import answers
from tests.engine.real import load
from tests.features.gguf.test_networks import OPTIONS, RECORDED
from tests.makers import zoo_gguf

pytestmark = pytest.mark.model
ROWS, COLUMNS = 64, 1024


@pytest.fixture(autouse=True)
def disk(monkeypatch, tmp_path):
    """Sets the folder for the file, on any file system."""
    monkeypatch.setattr(constant_file.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(constant_file, "is_local", lambda folder: folder == str(tmp_path))
    monkeypatch.setattr(weight_pages, "_kept", {})
    return tmp_path


def made(file: ConstantFile, kind: ov.Type, values: np.ndarray):
    """Returns a node with values [ROWS, COLUMNS], or in 4 bits [ROWS, COLUMNS / 2], written in pieces of seven rows."""
    new = NewConstant(file, kind, [ROWS, COLUMNS])
    for first in range(0, ROWS, 7):
        new.append(values[first : first + 7])
    return new.node()


def in_file(node) -> bool:
    """Returns whether a constant is in one of the mapped files."""
    address = node.data.ctypes.data
    return any(begin <= address < end for begin, end in weight_pages._kept)


@pytest.mark.parametrize("kind", ["i4", "i8", "f16", "bf16", "f32"])
def test_each_type_is_the_same_in_the_file(kind, disk):
    kind = getattr(ov.Type, kind)
    random = np.random.default_rng(1).integers(0, 255, ROWS * COLUMNS * kind.bitwidth // 8, np.uint8)
    values = random if kind.bitwidth < 16 else random.view(kind.to_dtype())
    file = ConstantFile(1 << 20)
    node = made(file, kind, values.reshape(ROWS, -1))
    file.close()
    assert in_file(node)
    weight_pages.drop()
    assert node.get_element_type() == kind
    assert [*node.get_output_shape(0)] == [ROWS, COLUMNS]
    assert node.data.tobytes() == values.tobytes()
    assert not [*disk.iterdir()], "the file has no name"


@pytest.mark.parametrize("why", ["far away", "no room", "no file", "larger than expected"])
def test_without_a_file_constants_are_in_memory(monkeypatch, why):
    new = NewConstant(ConstantFile(1 << 20), ov.Type.f32, [8])
    new.append(np.arange(8, dtype=np.float32))
    assert np.array_equal(new.node().data, np.arange(8))  # small ones are in memory anyway
    assert not weight_pages._kept
    assert not is_local("/proc")
    values = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, -1)
    size = 1 << 20
    if why == "far away":
        monkeypatch.setattr(constant_file, "is_local", lambda _: False)
    elif why == "no room":
        monkeypatch.setattr(constant_file.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))
    elif why == "no file":
        monkeypatch.setattr(constant_file.tempfile, "TemporaryFile", failing(errno.EROFS))
    else:
        size = values.nbytes // constant_file.ROOM - 1
    node = made(ConstantFile(size), ov.Type.f32, values)
    assert not in_file(node)
    assert np.array_equal(node.data, values)


def test_a_disk_that_fills_up_leaves_the_rest_in_memory(monkeypatch):
    values = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, -1)
    file = ConstantFile(1 << 20)
    first = made(file, ov.Type.f32, values)
    calls, write = iter((False, False, True)), os.pwrite

    def full(*args):
        if next(calls):
            raise OSError(errno.ENOSPC, "full")
        return write(*args)

    monkeypatch.setattr(constant_file.os, "pwrite", full)
    nodes = [first, made(file, ov.Type.f32, -values), made(file, ov.Type.f32, values)]
    assert [in_file(node) for node in nodes] == [True, False, False]
    assert all(np.array_equal(node.data, sign * values) for node, sign in zip(nodes, (1, -1, 1), strict=True))


def test_no_more_is_written_to_a_slow_disk(monkeypatch):
    monkeypatch.setattr(constant_file, "SLOW_AFTER", 1)
    monkeypatch.setattr(constant_file, "SLOW", float("inf"))
    values = np.ones((ROWS, COLUMNS), np.float32)
    file = ConstantFile(1 << 20)
    nodes = [made(file, ov.Type.f32, values) for _ in range(2)]
    assert [in_file(node) for node in nodes] == [True, False]
    assert all(np.array_equal(node.data, values) for node in nodes)


@pytest.mark.parametrize("name", ["qwen3_moe"])
def test_a_network_answers_the_same_when_its_constants_left_memory(name, monkeypatch, tmp_path):
    monkeypatch.setattr(constant_file, "LEAST_BYTES", 1)
    pipe = load(blocks=60, model_path=str(zoo_gguf.write(tmp_path / "x.gguf", name)), **OPTIONS)
    assert weight_pages._kept
    with weight_pages.dropping():
        found = answers(pipe)
    assert [ids for ids, _ in found] == [ids for ids, _ in RECORDED[name]["answers"]]


def failing(number: int):
    """Returns a function that raises an OSError."""

    def fail(**_):
        raise OSError(number, os.strerror(number))

    return fail
