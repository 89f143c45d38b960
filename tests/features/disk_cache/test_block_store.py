"""Blocks in files: what was written can be read; torn, foreign, changed and missing blocks are misses."""

import errno
import os
import random
import shutil
import stat
import zlib

import numpy as np
import pytest

from lean_ovms.engine.loading.file_identity import SAMPLE_BYTES
from lean_ovms.errors import StartError
from lean_ovms.features.disk_cache.child import segment as segments
from lean_ovms.features.disk_cache.child.block_store import BlockStore
from lean_ovms.features.disk_cache.child.install import fingerprint

MINE, OTHER = bytes(32), bytes([1] * 32)
SIZE = 1000
LIMIT = 1 << 21


def key(number):
    return number.to_bytes(32, "little")


def block(number, size=SIZE):
    """Returns the bytes of a block in two buffers, as for two layers."""
    content = np.frombuffer(random.Random(number).randbytes(size), np.uint8).copy()
    return [content[: size // 3], content[size // 3 :]]


def read(store, number, size=SIZE):
    """Returns the bytes of a block; None for a miss."""
    buffers = [np.zeros(size // 3, np.uint8), np.zeros(size - size // 3, np.uint8)]
    return b"".join(map(bytes, buffers)) if store.read(key(number), buffers) else None


def content(number, size=SIZE):
    return b"".join(map(bytes, block(number, size)))


def filled(path, count=20, fingerprint=MINE, limit=LIMIT):
    store = BlockStore(path, fingerprint, limit)
    for number in range(count):
        assert store.write(key(number), block(number))
    store.close()
    return store


def files(path, suffix="*"):
    return sorted(path.glob(f"*/*.{suffix}"))


def check(store, count=20):
    """Checks that every block is unchanged or missing. Returns how many are there."""
    found = [read(store, number) for number in range(count)]
    assert all(one is None or one == content(number) for number, one in enumerate(found))
    return count - found.count(None)


def test_what_was_written_is_read_at_once_and_by_the_next_process(tmp_path):
    store = filled(tmp_path)
    assert check(store) == 20
    assert check(BlockStore(tmp_path, MINE, LIMIT)) == 20
    assert store.size == BlockStore(tmp_path, MINE, LIMIT).size == 20 * SIZE


def test_no_file_stays_open(tmp_path):
    """There may be more segments than a process may open files."""
    before = len(os.listdir("/proc/self/fd"))
    store = filled(tmp_path, 200)
    assert len(files(tmp_path, "data")) > 2
    assert check(store, 200) == check(BlockStore(tmp_path, MINE, LIMIT), 200) == 200
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_are_the_owners_alone(tmp_path):
    root = tmp_path / "new"
    filled(root)
    assert {stat.S_IMODE(one.stat().st_mode) for one in files(root)} == {0o600}
    assert {stat.S_IMODE(one.stat().st_mode) for one in (root, *root.iterdir())} == {0o700}


def test_a_directory_to_which_others_can_write_is_refused(tmp_path):
    filled(tmp_path)
    (tmp_path / MINE.hex()).chmod(0o777)
    with pytest.raises(StartError, match="other users can write"):
        BlockStore(tmp_path, MINE, LIMIT)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_root_to_which_everybody_can_write_is_refused(tmp_path, mode):
    filled(tmp_path)
    tmp_path.chmod(mode)
    with pytest.raises(StartError, match="everybody can write"):
        BlockStore(tmp_path, MINE, LIMIT)
    tmp_path.chmod(0o775)  # a group may share the directory
    assert check(BlockStore(tmp_path, MINE, LIMIT)) == 20


@pytest.mark.parametrize("suffix", ["data", "index"])
@pytest.mark.parametrize("known", [False, True])
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path, suffix, known):
    filled(tmp_path)
    store = BlockStore(tmp_path, MINE, LIMIT) if known else None
    for one in files(tmp_path, suffix):
        one.unlink()
        os.mkfifo(one)
    store = store or BlockStore(tmp_path, MINE, LIMIT)
    assert check(store) == (20 if known and suffix == "index" else 0)
    store.refresh()
    assert store.write(key(30), block(30))
    store.clear()
    assert not len(store)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(1 << 63, SIZE), ((1 << 64) - 1, SIZE), (0, (1 << 64) - 1), (20 * SIZE, SIZE), (19 * SIZE + 1, SIZE)],
)
def test_a_record_with_a_right_checksum_and_a_wrong_place_is_not_used(tmp_path, offset, size, caplog):
    filled(tmp_path)
    [index] = files(tmp_path, "index")
    record = segments.RECORD.pack(key(77), offset, size, 0)
    with index.open("ab") as file:
        file.write(record + segments.CHECKSUM.pack(zlib.crc32(record)))
    store = BlockStore(tmp_path, MINE, LIMIT)
    assert key(77) not in store
    assert check(store) == 20
    assert "past the end" in caplog.text


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    filled(tmp_path)
    for one in files(tmp_path):
        one.rename(tmp_path / one.name)
        one.symlink_to(tmp_path / one.name)
    assert check(BlockStore(tmp_path, MINE, LIMIT)) == 0


def test_blocks_of_another_model_are_not_found(tmp_path, caplog):
    filled(tmp_path, fingerprint=OTHER)
    assert check(BlockStore(tmp_path, MINE, LIMIT)) == 0
    (tmp_path / MINE.hex()).rmdir()
    (tmp_path / OTHER.hex()).rename(tmp_path / MINE.hex())  # as if the block belonged to this model
    assert check(BlockStore(tmp_path, MINE, LIMIT)) == 0
    assert len(caplog.records) == 1


def test_a_block_of_another_size_is_a_miss(tmp_path):
    filled(tmp_path)
    store = BlockStore(tmp_path, MINE, LIMIT)
    assert read(store, 3, SIZE + 1) is None


@pytest.mark.parametrize("seed", range(50))
def test_whatever_is_done_to_the_files_a_block_is_right_or_missing(tmp_path, seed, caplog):
    dice = random.Random(seed)
    filled(tmp_path)
    for one in files(tmp_path):
        data = bytearray(one.read_bytes())
        match dice.randrange(5):
            case 0:
                data = data[: dice.randrange(len(data))]
            case 1:
                for _ in range(dice.choice([1, 1, 30])):
                    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            case 2:
                at = dice.randrange(len(data))
                data[at:at] = dice.randbytes(dice.randrange(1, 100))
            case 3:
                data = bytearray(dice.randbytes(dice.randrange(3000)))
            case 4:
                at = dice.randrange(len(data))
                data[at : at + 500] = bytes(500)
        one.write_bytes(data)
    store = BlockStore(tmp_path, MINE, LIMIT)
    check(store)
    assert len(caplog.records) <= 2
    for number in range(20):
        assert store.write(key(number), block(number))
    assert check(store) >= 1


def test_a_file_that_vanishes_is_a_miss_without_a_word(tmp_path, caplog):
    filled(tmp_path)
    store = BlockStore(tmp_path, MINE, LIMIT)
    for one in files(tmp_path):
        one.unlink()
    assert check(store) == 0
    store.refresh()
    assert not len(store)
    assert not caplog.records


def test_the_limit_holds_and_what_was_used_longest_ago_goes(tmp_path):
    limit, now = LIMIT // 4, 1_000_000_000.0
    store = BlockStore(tmp_path, MINE, limit)
    for number in range(750):
        assert store.write(key(number), block(number))
        assert sum(one.stat().st_size for one in files(tmp_path)) <= limit
        for place, one in enumerate(files(tmp_path)):
            os.utime(one, (now + place, now + place))
    kept = [number for number in range(750) if key(number) in store]
    assert kept == list(range(kept[0], 750))
    assert len(kept) * (SIZE + segments.RECORD_BYTES) > limit * 0.8
    assert store.removed_bytes + store.size == store.written_bytes


def test_what_is_read_stays_longer(tmp_path):
    store, now = BlockStore(tmp_path, MINE, LIMIT), 1_000_000_000.0
    for number in range(1000):
        store.write(key(number), block(number))
    for place, one in enumerate(files(tmp_path)):
        os.utime(one, (now + place, now + place))
    assert read(store, 1) == content(1)
    for number in range(1000, 2300):
        store.write(key(number), block(number))
    assert read(store, 1) == content(1)
    assert key(200) not in store


def test_the_limit_is_that_of_all_models_together(tmp_path):
    for number in range(6):
        filled(tmp_path, 600, bytes([number] * 32))
        assert sum(one.stat().st_size for one in files(tmp_path)) <= LIMIT
    assert len(BlockStore(tmp_path, bytes(32), LIMIT)) < 600


def test_a_block_larger_than_the_limit_is_not_written(tmp_path, caplog):
    store = BlockStore(tmp_path, MINE, LIMIT)
    for _ in range(3):
        assert not store.write(key(1), block(1, LIMIT + 1))
    assert store.errors == 3
    assert [record.getMessage().partition("(")[0] for record in caplog.records] == [
        "prefix cache on disk: --prefix_cache_disk_gb "
    ]
    assert store.write(key(2), block(2))


def test_two_writers_read_each_others_blocks_and_do_not_remove_what_is_being_written(tmp_path):
    first, second = (BlockStore(tmp_path, MINE, LIMIT // 4) for _ in range(2))
    for number in range(1000):
        (first, second)[number % 2].write(key(number), block(number))
        if number % 20 == 0:
            assert sum(one.stat().st_size for one in files(tmp_path)) <= LIMIT // 4
    first.refresh()
    second.refresh()
    newest = [read(store, number) for store in (first, second) for number in range(990, 1000)]
    assert newest == 2 * [content(number) for number in range(990, 1000)]
    check(first, 1000)
    check(second, 1000)


def test_a_cache_that_is_removed_while_it_is_used_begins_anew(tmp_path):
    root = tmp_path / "cache"
    store = BlockStore(root, MINE, LIMIT)
    assert store.write(key(0), block(0))
    shutil.rmtree(root)
    for _ in range(2):
        store.refresh()
        assert (store.errors, len(store)) == (1, 0)
    assert store.write(key(1), block(1))
    assert check(BlockStore(root, MINE, LIMIT)) == check(store) == 1


class FullDisk:
    """Stands for os.pwritev on a disk with this many bytes left."""

    def __init__(self, left):
        self.left = left
        self.write = os.pwritev

    def __call__(self, file, buffers, offset):
        size = sum(len(buffer) for buffer in buffers)
        if size > self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= size
        return self.write(file, buffers, offset)


def test_on_a_full_disk_nothing_more_is_written_for_a_while(tmp_path, monkeypatch, caplog):
    disk = FullDisk(10 * SIZE)
    monkeypatch.setattr(os, "pwritev", disk)
    store = BlockStore(tmp_path, MINE, LIMIT)
    assert [store.write(key(number), block(number)) for number in range(20)] == [True] * 10 + [False] * 10
    assert check(store) == check(BlockStore(tmp_path, MINE, LIMIT)) == 10
    assert [record.getMessage() for record in caplog.records if "No space left" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    disk.left = LIMIT
    store._pause_until = 0.0
    assert store.write(key(11), block(11))
    assert check(store) == 11


def test_a_write_that_does_less_than_it_was_asked_for_goes_on(tmp_path, monkeypatch):
    write, got = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: write(file, [parts[0][:7]], at))
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: got(file, [parts[0][:11]], at))
    assert check(filled(tmp_path)) == 20


def test_many_buffers_are_transferred_in_calls_that_systems_allow():
    """Counts the buffers per call. Cutting a list at its front for each call would take minutes for a long text."""
    calls = []
    buffers = [np.zeros(1 + number % 3, np.uint8) for number in range(3 * segments.MOST_BUFFERS)]

    def call(file, parts, at):
        calls.append((at, len(parts)))
        return min(700, segments.nbytes(parts))

    assert segments.transfer(call, 0, buffers, 5)
    assert [at for at, _ in calls] == list(range(5, 5 + segments.nbytes(buffers), 700))
    assert calls[0][1] == segments.MOST_BUFFERS >= max(parts for _, parts in calls)


def test_clearing_removes_this_models_blocks_alone(tmp_path):
    filled(tmp_path, fingerprint=OTHER)
    store = filled(tmp_path)
    store.write(key(100), block(100))
    store.clear()
    assert not len(store)
    assert not store.size
    assert check(BlockStore(tmp_path, OTHER, LIMIT)) == 20
    assert store.write(key(1), block(1))


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
