"""Pages of mapped weights can leave memory, and the network computes the same as before."""

import mmap
import os
import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from lean_ovms.engine.loading import weight_pages

pytestmark = pytest.mark.model
SIZE = 1024


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(weight_pages, "_kept", {})
    monkeypatch.setattr(weight_pages, "_files", {})


@pytest.fixture
def network(tmp_path):
    """Returns a network of one product, loaded from a file."""
    weights = np.random.default_rng(1).standard_normal((SIZE, SIZE), np.float32)
    x = ops.parameter([-1, SIZE], np.float32, name="x")
    file = tmp_path / "network.xml"
    ov.save_model(ov.Model([ops.matmul(x, weights, False, True)], [x]), file, compress_to_fp16=False)
    return file


def resident(file: Path) -> int | None:
    """Returns the KB of a file that are in this process's memory; None if it is not mapped."""
    found = re.search(rf"{file}\n(?:\w+: .*\n)*?Rss: +(\d+)", Path("/proc/self/smaps").read_text())
    return int(found[1]) if found else None


def test_pages_leave_memory_and_are_read_again(network):
    file = network.with_suffix(".bin")
    model = ov.Core().read_model(network)
    weight_pages.keep(model)
    with weight_pages.dropping():
        compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    first = compiled(np.ones((3, SIZE), np.float32))[0].copy()
    [constant] = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    expected = constant.data.copy()
    assert resident(file) >= expected.nbytes >> 10
    weight_pages.drop()
    assert resident(file) == 0
    assert np.array_equal(compiled(np.ones((3, SIZE), np.float32))[0], first)
    assert np.array_equal(constant.data, expected)


def test_a_mapping_stays_as_long_as_it_may_be_dropped(network):
    """Otherwise the addresses could belong to other memory."""
    weight_pages.keep(ov.Core().read_model(network))
    assert resident(network.with_suffix(".bin")) is not None


def test_a_file_that_is_overwritten_is_found_and_one_that_is_replaced_is_not(network, tmp_path):
    file = network.with_suffix(".bin")
    weight_pages.keep(ov.Core().read_model(network))
    assert weight_pages.changed_file() == ""
    content = file.read_bytes()
    (tmp_path / "other").write_bytes(content[::-1])
    (tmp_path / "other").replace(file)
    assert weight_pages.changed_file() == ""
    weight_pages.keep(ov.Core().read_model(network))
    os.utime(file, ns=(0, 0))
    assert weight_pages.changed_file() == str(file)


@pytest.mark.parametrize(("size", "seen"), [(100, True), (1 << 21, True), (0, False)])
def test_weights_that_a_pipeline_maps_itself_are_watched_too(size, seen, tmp_path):
    file, other = tmp_path / "openvino_model.bin", tmp_path / "cache"
    for path in (file, other):
        path.write_bytes(bytes(size or 100))
    with file.open("rb") as opened, other.open("rb") as opened_too:
        mapped = [mmap.mmap(one.fileno(), 0, prot=mmap.PROT_READ) for one in (opened, opened_too) if size]
        for _ in range(2):
            weight_pages.watch()
        os.utime(other, ns=(0, 0))
        assert weight_pages.changed_file() == ""
        file.write_bytes(b"new")
        assert weight_pages.changed_file() == (str(file) if seen else "")
        for one in mapped:
            one.close()


@pytest.mark.parametrize("size", [0, 1 << 20, 1 << 30])
def test_a_file_whose_size_changes_is_found_with_its_old_time(network, size):
    file = network.with_suffix(".bin")
    weight_pages.keep(ov.Core().read_model(network))
    before = file.stat().st_mtime_ns
    os.truncate(file, size)
    os.utime(file, ns=(before, before))
    assert weight_pages.changed_file() == str(file)
    file.unlink()
    assert weight_pages.changed_file() == str(file)


def test_nothing_is_dropped_of_a_network_in_memory_or_where_mappings_are_unknown(network, monkeypatch):
    x = ops.parameter([-1, SIZE], np.float32)
    weight_pages.keep(ov.Model([ops.matmul(x, np.ones((SIZE, SIZE), np.float32), False, True)], [x]))
    monkeypatch.setattr(weight_pages, "MAPS", Path("/none"))
    weight_pages.keep(ov.Core().read_model(network))
    assert not weight_pages._kept
    weight_pages.drop()
