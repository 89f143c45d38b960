"""Stored compiled networks compute the same tokens with the same operations; if anything is wrong, they are compiled
again."""

import json
import logging
import os
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from lean_ovms.config import Config
from lean_ovms.engine.paged import assemble
from lean_ovms.features.compiled_cache.child import compiler, network, store
from lean_ovms.features.compiled_cache.child.store import (
    ABOUT,
    FOLDER,
    GRAPH,
    UNFINISHED,
    WEIGHTS,
    KeptNetwork,
    NetworkStore,
)
from tests.engine.paged.test_zoo import answers
from tests.engine.real import load
from tests.features.gguf.test_networks import OPTIONS
from tests.makers import zoo_gguf

LLAMA = Path(__file__).parents[2] / "data" / "llama_sp"
USED = "using the compiled network of an earlier start"


@pytest.fixture(autouse=True)
def told(caplog):
    """Records the log lines about stored networks."""
    caplog.set_level(logging.INFO, "lean_ovms.compiled_cache")


def start(model: Path, folder: Path, **options):
    """Returns the answers of a model that stores its network in a folder."""
    return answers(load(60, model_path=str(model), cache_dir=str(folder), **OPTIONS, **options))


def kept(folder: Path) -> list[Path]:
    """Returns the folders of the networks stored in a folder."""
    return sorted(path.parent for path in folder.glob(f"{FOLDER}/*/{ABOUT}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("llama", "Q4_0"), ("qwen3_5_text", "F16"), ("gpt_oss", "F16"), ("gemma2", "F16")]
)
def test_tokens_and_log_probabilities_are_the_same_from_the_first_start_on(name, kind, tmp_path, caplog):
    file = zoo_gguf.write(tmp_path / "x.gguf", name, kind)
    expected = answers(load(60, model_path=str(file), **OPTIONS))
    assert start(file, tmp_path) == expected
    assert USED not in caplog.text
    assert start(file, tmp_path) == expected
    # Openvino cannot load these operations from a cache.
    unread = {"gemma2": "CappedAttention", "gpt_oss": "GatherMatmul"}.get(name)
    assert (USED in caplog.text) is (unread is None)
    assert caplog.text.count(f"will never be stored: Cannot create {unread}") == (unread is not None)


@pytest.mark.slow
def test_a_model_in_openvinos_form_is_kept_and_other_options_compile_it_anew(tmp_path, caplog):
    expected = start(LLAMA, tmp_path)
    assert start(LLAMA, tmp_path) == expected
    assert caplog.text.count(USED) == 1
    start(LLAMA, tmp_path, batch_invariant=True)
    start(LLAMA, tmp_path, without="hybrid_chunks")  # this changes the inputs of networks with states
    assert caplog.text.count(USED) == 1
    assert len(kept(tmp_path)) == 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns a model, a folder in which its network is stored, and its answers."""
    folder = tmp_path_factory.mktemp("kept")
    file = zoo_gguf.write(folder / "x.gguf", "llama", "Q4_0")
    return file, folder, start(file, folder)


def flip(path: Path, place: int) -> None:
    """Changes one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.chmod(0o600)
    path.write_bytes(data)


DAMAGES = {
    "a bit of the constants": lambda one: flip(one / WEIGHTS, -100_000),
    "a bit of the operations": lambda one: flip(one / GRAPH, 5000),
    "a bit of what is known": lambda one: flip(one / ABOUT, 60),
    "constants that end early": lambda one: os.truncate(one / WEIGHTS, 1000),
    "no operations": lambda one: (one / GRAPH).unlink(),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_network_that_was_changed_is_compiled_anew_and_kept_again(whole, damage, caplog):
    file, folder, expected = whole
    [one] = kept(folder)
    DAMAGES[damage](one)
    assert start(file, folder) == expected
    assert USED not in caplog.text
    assert "earlier start is not used" in caplog.text or "is damaged" in caplog.text
    assert kept(folder) == [one]
    assert start(file, folder) == expected
    assert USED in caplog.text


@pytest.mark.slow
def test_a_network_that_would_be_computed_by_other_operations_is_compiled_each_time(tmp_path, monkeypatch, caplog):
    file = zoo_gguf.write(tmp_path / "x.gguf", "llama", "Q4_0")
    monkeypatch.setattr(compiler, "computes_the_same", lambda compiled, again: False)
    expected = start(file, tmp_path)
    [one] = kept(tmp_path)
    assert [path.name for path in one.iterdir()] == [ABOUT]
    assert start(file, tmp_path) == expected
    assert caplog.text.count("will never be stored: compiling the stored network gives other operations") == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", FOLDER])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, place, caplog):
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place).chmod(0o775)
    start(zoo_gguf.write(tmp_path / "x.gguf", "llama", "Q4_0"), tmp_path)
    assert kept(tmp_path) == []
    assert "other users can write there; chmod go-w" in caplog.text


@pytest.mark.slow
def test_another_form_of_openvinos_files_keeps_nothing(tmp_path, monkeypatch, caplog):
    file = zoo_gguf.write(tmp_path / "x.gguf", "llama", "Q4_0")
    monkeypatch.setattr(network, "HEAD_BYTES", 100)
    expected = answers(load(60, model_path=str(file), **OPTIONS))
    assert start(file, tmp_path) == expected
    assert "will never be stored: OpenVINO writes networks in an unknown format" in caplog.text


def write(keeper: NetworkStore, key: str, size: int) -> None:
    """Stores a network with this many bytes."""
    with keeper.writing(key) as folder:
        (folder / WEIGHTS).write_bytes(bytes(size))
        keeper.publish(key, folder, KeptNetwork(weights=size))


def test_what_was_used_longest_ago_is_removed(tmp_path):
    keeper = NetworkStore(tmp_path, 3500)
    assert keeper.is_safe()
    for number, key in enumerate("abc"):
        write(keeper, key, 1000)
        os.utime(keeper.path(key) / ABOUT, (number, number))
    assert keeper.find("a") == KeptNetwork(weights=1000)
    write(keeper, "d", 1000)
    assert keeper.find("b") is None
    assert all(map(keeper.find, "acd"))
    with pytest.raises(OSError, match="its 4000 bytes exceed the limit of 3500 bytes"):
        write(keeper, "e", 4000)
    assert sorted(path.name for path in keeper.folder.iterdir()) == ["a", "c", "d"]


def test_one_process_writes_a_network_and_what_one_left_behind_is_removed(tmp_path):
    keeper = NetworkStore(tmp_path, 10_000)
    assert keeper.is_safe()
    with keeper.writing("a") as folder, keeper.writing("a") as other:
        assert folder is not None
        assert other is None
    assert [*keeper.folder.iterdir()] == []
    for key in "ab":  # left behind by processes that were killed
        (keeper.folder / f"{UNFINISHED}{key}").mkdir()
        (keeper.folder / f"{UNFINISHED}{key}" / WEIGHTS).touch()
    write(keeper, "a", 10)
    assert keeper.find("a") is not None
    assert [path.name for path in keeper.folder.iterdir()] == ["a"]


def test_a_process_that_is_late_does_not_touch_what_another_has_published(tmp_path, monkeypatch):
    keeper = NetworkStore(tmp_path, 10_000)
    assert keeper.is_safe()
    open_folder = os.open

    def slow(path, *others):
        descriptor = open_folder(path, *others)
        Path(path).rename(keeper.path("a"))
        return descriptor

    unfinished = keeper.folder / f"{UNFINISHED}a"
    unfinished.mkdir()
    (unfinished / WEIGHTS).touch()
    monkeypatch.setattr(store.os, "open", slow)
    assert store._lock(unfinished) is None
    assert (keeper.path("a") / WEIGHTS).is_file()


def test_a_file_that_is_too_large_is_not_written_at_all(tmp_path, monkeypatch):
    file = tmp_path / "x.gguf"
    file.write_bytes(bytes(5000))
    config = Config(cache_dir=str(tmp_path), cache_dir_gb=0.001)
    one = compiler.KeepingCompiler(config, file, {})
    assert one._store.is_safe()
    assert one._has_room()
    monkeypatch.setattr(one._store, "most_bytes", 4000)
    assert not one._has_room()


def test_networks_differ_by_their_file_their_options_and_how_they_are_computed(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(bytes(5000))
    config = Config(cache_dir=str(tmp_path))

    def key(properties=(), **depends_on):
        return compiler.KeepingCompiler(config, file, depends_on)._key(dict(properties))

    keys = [key(), key({"A": 1}), key({"A": 2}), key(trees=True), key(trees=False)]
    assert key() == keys[0]
    os.utime(file, (1, 1))
    keys.append(key())
    file.write_bytes(bytes(4999) + b"1")
    os.utime(file, (1, 1))
    keys.append(key())
    assert len({*keys}) == len(keys)


def test_what_is_known_of_a_network_is_read_as_it_was_written(tmp_path):
    keeper = NetworkStore(tmp_path, 10_000)
    assert keeper.is_safe()
    entry = KeptNetwork({"attention": {"k_head_size": 64}}, 1, 2)
    with keeper.writing("a") as folder:
        keeper.publish("a", folder, entry)
    assert keeper.find("a") == entry
    text = json.dumps({"heads": [], "unknown": 1}).encode()
    (keeper.path("a") / ABOUT).write_bytes(store._check(text) + text)
    assert keeper.find("a") is None
    assert not keeper.path("a").exists()


@pytest.mark.slow
def test_a_slow_start_says_that_its_network_can_be_kept(tmp_path, caplog, monkeypatch):
    file = zoo_gguf.write(tmp_path / "x.gguf", "llama", "Q4_0")
    caplog.set_level(logging.INFO, "lean_ovms.engine")
    advised = "with --cache_dir DIR"
    monkeypatch.setattr(assemble, "SLOW_S", 0)
    load(60, model_path=str(file), **OPTIONS)  # so small a network is not kept
    monkeypatch.setattr(assemble, "is_small", lambda file: False)
    load(60, model_path=str(file), cache_dir=str(tmp_path), **OPTIONS)
    load(60, model_path=str(file), without="compiled_cache", **OPTIONS)
    load(60, model_path=str(file), allow_runtime_lora=True, **OPTIONS)
    monkeypatch.setattr(assemble, "SLOW_S", 1000)
    load(60, model_path=str(file), **OPTIONS)
    assert advised not in caplog.text
    monkeypatch.setattr(assemble, "SLOW_S", 0)
    load(60, model_path=str(file), **OPTIONS)
    assert caplog.text.count(advised) == 1
