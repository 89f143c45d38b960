"""Slots: the cached part of a text is saved, erased and restored, and no file leads to a wrong answer."""

import errno
import os
import stat
import struct
import zlib
from dataclasses import replace

import pytest

from lean_ovms.errors import BadRequest, StartError, StoreFailure, StoreFull
from lean_ovms.features.slots.child.files import HEAD, MOST_SALT, MOST_SLOTS, SlotFiles
from lean_ovms.features.slots.child.install import Slots
from lean_ovms.features.slots.records import SlotAction
from tests.cases import few_fast
from tests.engine.paged.harness import Params
from tests.engine.paged.network import FakeNetwork, HybridNetwork
from tests.engine.paged.test_engine import SIZE, alone, engine, prompt, run

FINGERPRINT = bytes(range(32))
ASKED = Params(max_tokens=6)
BOTH = pytest.mark.parametrize("kind", [FakeNetwork, HybridNetwork])
FILE = "a.bin"
CHECKSUM = 8 + len(FINGERPRINT)
"""The position of the checksum in a file."""


def with_slots(path, blocks=200, fingerprint=FINGERPRINT, limit=1 << 24, **options):
    made = engine(blocks, **{"interval": 16, **options})
    made.hooks.append(
        Slots(SlotFiles(path, fingerprint, limit, made.network, made.blocks, made.states), made.out.append)
    )
    return made


def act(made, action, slot, file):
    """Returns the tokens and bytes of an action."""
    made.handle(SlotAction(1, action, slot, file))
    done = made.out.pop()
    return done.tokens, done.bytes


def cached(made, ids, **fields):
    """Checks the answer to a prompt, and returns how many of its tokens were cached."""
    asked = replace(ASKED, **fields)
    request = made.add(ids, asked)
    assert run(made, request) == [alone(ids, asked)]
    return request.cached


@pytest.fixture(params=[FakeNetwork, HybridNetwork])
def saved(request, tmp_path):
    """Returns the directory with a file, its prompt, the kind of network, and the server's report on the file."""
    path, ids = tmp_path / "slots", prompt(10 * SIZE + 3, 1)
    made = with_slots(path, kind=request.param)
    assert cached(made, ids, cache_salt="s") == 0
    return path, ids, request.param, act(made, "save", 0, FILE)


def test_what_was_saved_is_cached_in_another_engine(saved):
    path, ids, kind, (tokens, size) = saved
    assert tokens >= 10 * SIZE
    file = path / FILE
    assert (file.stat().st_size, stat.S_IMODE(file.stat().st_mode), os.listdir(path)) == (size, 0o600, [FILE])
    made = with_slots(path, kind=kind)
    available = made.blocks.available
    assert act(made, "restore", 3, FILE) == (tokens, size)
    assert made.blocks.available == available  # no references are left
    assert cached(made, ids) == 0  # the salt is another
    assert cached(made, ids, cache_salt="s") == 10 * SIZE
    assert act(made, "restore", 3, FILE) == (tokens, size)
    assert made.blocks.available == available


def test_what_is_erased_is_computed_again_and_can_be_restored(saved):
    path, ids, kind, (tokens, _) = saved
    made = with_slots(path, kind=kind)
    assert cached(made, ids, cache_salt="s") == 0
    assert act(made, "erase", 0, "") == (tokens, 0)
    assert act(made, "erase", 0, "") == (0, 0)
    assert cached(made, ids, cache_salt="s") == 0
    act(made, "erase", 0, "")
    act(made, "restore", 0, FILE)
    assert cached(made, ids, cache_salt="s") == 10 * SIZE
    assert act(made, "save", 0, "b.bin")[0] == tokens


@BOTH
def test_an_unused_slot_has_nothing(kind, tmp_path):
    made = with_slots(tmp_path / "s", kind=kind)
    tokens, size = act(made, "save", 7, FILE)
    assert (tokens, size) == (0, HEAD.size)
    assert act(made, "restore", 1, FILE) == (0, size)
    assert act(made, "erase", 1, "") == (0, 0)


def test_a_text_with_a_longer_salt_than_a_file_may_have_is_not_saved(tmp_path):
    made, ids = with_slots(tmp_path / "s"), prompt(3 * SIZE, 1)
    cached(made, ids, cache_salt="s" * MOST_SALT)
    saved = act(made, "save", 0, FILE)
    assert act(made, "restore", 0, FILE) == saved
    cached(made, ids, cache_salt="s" * (MOST_SALT + 1))
    with pytest.raises(BadRequest, match=f"cache_salt .* {MOST_SALT + 1} bytes"):
        act(made, "save", 0, "b.bin")
    assert os.listdir(tmp_path / "s") == [FILE]


def test_blocks_of_a_running_sequence_are_not_erased(tmp_path):
    made = with_slots(tmp_path / "s")
    ids = prompt(6 * SIZE, 1)
    running = made.add(ids, replace(ASKED, max_tokens=20))
    for _ in range(4):
        made.admit()
        made.runner.compute()
    assert act(made, "erase", 0, "") == (0, 0)
    assert run(made, running) == [alone(ids, replace(ASKED, max_tokens=20))]


def test_the_latest_slots_are_remembered(tmp_path):
    made = with_slots(tmp_path / "s")
    ids = prompt(3 * SIZE, 1)
    cached(made, ids)
    for slot in range(1, MOST_SLOTS + 1):
        made.hooks[0].files.use(slot, "", made.hooks[0].files._used[0].ids if slot < MOST_SLOTS else prompt(SIZE, 2))
    assert act(made, "save", 0, FILE)[0] == 0
    assert act(made, "save", 1, FILE)[0] == 4 * SIZE


@pytest.mark.parametrize("seed", few_fast(range(60), 12))
def test_a_damaged_file_is_refused_and_leaves_nothing(seed, saved):
    """The file is truncated, longer, or changed anywhere. The result is an error, or what was saved."""
    path, ids, kind, _ = saved
    data = bytearray((path / FILE).read_bytes())
    places = [*range(0, HEAD.size, 3), HEAD.size, HEAD.size + 9, len(data) // 2, len(data) - 1]
    if seed < len(places):
        data[places[seed]] ^= 0x41
    elif seed % 2:
        del data[len(data) * seed // 60 :]
    else:
        data += bytes(seed)
    (path / FILE).write_bytes(data)
    made = with_slots(path, kind=kind)
    blocks, states = made.blocks.free, made.states.available
    with pytest.raises(BadRequest) as caught:
        act(made, "restore", 0, FILE)
    assert caught.value.param == "filename"
    assert (made.blocks.free, made.states.available) == (blocks, states)
    assert cached(made, ids, cache_salt="s") == 0


def test_a_file_with_a_right_checksum_and_wrong_contents_is_refused_and_leaves_nothing(saved):
    """Invalid positions of states, tokens of images, and a salt that is not text."""
    path, ids, kind, _ = saved
    data = (path / FILE).read_bytes()
    tokens, places = struct.unpack_from("<QQ", data, HEAD.size - 16)
    place = HEAD.size + 1 + 8 * tokens
    wrong = [(HEAD.size, b"\xff"), (HEAD.size + 1, struct.pack("<q", -2))]
    wrong += [(place, struct.pack("<q", at)) for at in (0, -1, tokens // SIZE + 1, 1 << 40) if places]
    for offset, values in wrong:
        changed = bytearray(data)
        changed[offset : offset + len(values)] = values
        struct.pack_into("<I", changed, CHECKSUM, zlib.crc32(changed[HEAD.size :]))
        (path / FILE).write_bytes(changed)
        made = with_slots(path, kind=kind)
        before = made.blocks.free, made.states.available
        with pytest.raises(BadRequest, match="damaged"):
            act(made, "restore", 0, FILE)
        assert (made.blocks.free, made.states.available) == before
        assert cached(made, ids, cache_salt="s") == 0


def test_a_number_of_tokens_that_no_file_has_allocates_nothing(saved):
    path, _, kind, _ = saved
    data = bytearray((path / FILE).read_bytes())
    struct.pack_into("<Q", data, HEAD.size - 16, (1 << 62) // SIZE * SIZE)
    (path / FILE).write_bytes(data)
    with pytest.raises(BadRequest, match="damaged"):
        act(with_slots(path, kind=kind), "restore", 0, FILE)


def test_a_file_of_another_model_is_refused(saved):
    path, _, kind, _ = saved
    with pytest.raises(BadRequest, match="saved with another model"):
        act(with_slots(path, kind=kind, fingerprint=bytes(32)), "restore", 0, FILE)


def test_a_file_that_does_not_fit_is_refused(saved):
    path, _, kind, _ = saved
    with pytest.raises(BadRequest, match="no room"):
        act(with_slots(path, 8, kind=kind), "restore", 0, FILE)


def test_what_is_no_file_is_refused(saved):
    path, _, kind, _ = saved
    made = with_slots(path, kind=kind)
    os.mkfifo(path / "fifo")
    (path / "folder").mkdir()
    (path / "link").symlink_to(path / FILE)
    for name in ("none", "fifo", "folder", "link"):
        with pytest.raises(BadRequest, match="cannot be read"):
            act(made, "restore", 0, name)
    with pytest.raises(StoreFailure, match="cannot be written"):
        act(made, "save", 0, "folder")
    assert sorted(os.listdir(path)) == [FILE, "fifo", "folder", "link"]


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EROFS, StoreFailure), (errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull)]
)
def test_why_a_file_cannot_be_written_is_told(saved, monkeypatch, number, error):
    path, ids, kind, _ = saved
    made = with_slots(path, kind=kind)
    cached(made, ids, cache_salt="s")

    def refused(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("lean_ovms.features.slots.child.files.open_file", refused)
    monkeypatch.setattr(type(path), "unlink", refused)
    with pytest.raises(StoreFailure, match=f"cannot be written: {os.strerror(number)}") as failed:
        act(made, "save", 0, "b.bin")
    assert type(failed.value) is error


def test_the_files_have_a_limit_together(saved):
    path, ids, kind, (_, size) = saved
    made = with_slots(path, kind=kind, limit=size + 100)
    cached(made, ids, cache_salt="s")
    before = (path / FILE).read_bytes()
    (path / f".{FILE}.0.part").write_bytes(bytes(1000))  # left by a process that was killed
    assert act(made, "save", 0, FILE)[1] == size  # the file is replaced
    with pytest.raises(StoreFull, match="together"):
        act(made, "save", 0, "b.bin")
    assert os.listdir(path) == [FILE]
    assert len((path / FILE).read_bytes()) == len(before)


def test_a_directory_to_which_others_could_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StartError, match="other users can write"):
        with_slots(tmp_path / "open")
