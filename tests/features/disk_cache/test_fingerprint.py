"""Blocks are valid only for one network with one kind of cache, computed in one way."""

import os

import pytest

from lean_ovms.engine.loading.file_identity import SAMPLE_BYTES
from lean_ovms.features.disk_cache.child.install import fingerprint

LAYOUT = {"key_cache.0": "u8 [2, 40, 32]"}
PROPERTIES = {"KV_CACHE_PRECISION": "u8", "INFERENCE_NUM_THREADS": 2}


@pytest.fixture
def model(tmp_path):
    """Writes the files of two networks."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.xml").write_text(f"<net name='{name}'/>")
        (tmp_path / f"{name}.bin").write_bytes(bytes(10 * SAMPLE_BYTES))
    return tmp_path


def of(model, layout=LAYOUT, properties=PROPERTIES, **other):
    return fingerprint(model.glob("*.xml"), layout, properties, **other)


def test_the_same_model_has_the_same_one_also_with_other_threads(model):
    assert of(model) == of(model)
    assert of(model, properties={**PROPERTIES, "INFERENCE_NUM_THREADS": 8, "CACHE_DIR": "x"}) == of(model)
    assert len(of(model)) == 32


def test_whatever_changes_what_is_computed_changes_it(model):
    found = {of(model), of(model, {"key_cache.0": "u8 [2, 40, 64]"}), of(model, properties={}), of(model, version="2")}
    found.add(of(model, version="3"))
    (model / "b.xml").write_text("<net name='other'/>")
    found.add(of(model))
    status = (model / "a.bin").stat()
    data = bytearray((model / "a.bin").read_bytes())
    data[-1] = 1
    (model / "a.bin").write_bytes(data)
    os.utime(model / "a.bin", ns=(status.st_atime_ns, status.st_mtime_ns))  # as if the file had not changed
    found.add(of(model))
    os.utime(model / "a.bin", ns=(0, 0))
    found.add(of(model))
    (model / "b.xml").unlink()
    found.add(of(model))
    assert len(found) == 9


def test_a_network_in_one_file_with_its_weights_is_told_from_others(model):
    found = set()
    for byte in (0, 1):
        (model / "x.gguf").write_bytes(bytes([byte]) * 2 * SAMPLE_BYTES)
        found.add(fingerprint([model / "x.gguf"], LAYOUT, PROPERTIES))
    assert len(found) == 2
