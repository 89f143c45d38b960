"""Framing: any cut, any content, and errors for anything that is not a frame."""

import contextlib
import dataclasses
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.composition import compose, records_of
from lean_ovms.engine import protocol
from lean_ovms.features.pooling.records import Pooled
from lean_ovms.types.engine import Vocabulary

OF_FEATURES = {kind: None for row in (*compose().tasks, *compose().engine_rows) for kind in records_of(row)}
KINDS = [*protocol.CORE_KINDS.values(), *OF_FEATURES]


class Decoder(protocol.Decoder):
    """A decoder that knows the records of all tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.know(OF_FEATURES)


ints = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
json = st.recursive(
    st.none() | st.booleans() | ints | floats | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OF_TYPE = {
    "int": ints,
    "int | None": st.none() | ints,
    "bool": st.booleans(),
    "str": st.text(),
    "str | None": st.none() | st.text(),
    "str | list[int]": st.text() | st.lists(ints),
    "list[str | list[int]]": st.lists(st.text() | st.lists(ints)),
    "list[int]": st.lists(ints),
    "list[int] | None": st.none() | st.lists(ints),
    "list[str]": st.lists(st.text()),
    "list[Any]": st.lists(st.none() | st.text() | st.dictionaries(st.text(), st.text())),
    "list[float] | None": st.none() | st.lists(floats),
    "list[float | None]": st.lists(st.none() | floats),
    "list[Sequence[Alternative]]": st.lists(st.lists(st.lists(floats))),
    "list[list[int]]": st.lists(st.lists(ints)),
    "list[list[float]]": st.lists(st.lists(floats)),
    "float": floats,
    "list[tuple[str, float]] | None": st.none() | st.lists(st.lists(st.text() | floats, min_size=2, max_size=2)),
    "dict[str, int]": st.dictionaries(st.text(), ints),
    "dict[str, Any]": st.dictionaries(st.text(), json),
}


def sent_as_json(cls):
    return [f for f in dataclasses.fields(cls) if "attached" not in f.metadata]


records = st.one_of([st.builds(cls, **{f.name: OF_TYPE[f.type] for f in sent_as_json(cls)}) for cls in KINDS])

SOME = [
    protocol.Accepted(7, 3),
    protocol.Tokens(7, 0, [1, 2], [-0.5, -1.25], None),
    protocol.Tokens(7, 1, [], None, "stop"),
    protocol.Failed(7, ["EngineFailure", "naïve €", None, None]),
]


def fed(data, cuts):
    """Returns the records that come of data in pieces."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = Decoder()
    return [record for start, end in itertools.pairwise(edges) for record in decoder.feed(data[start:end])]


@pytest.mark.slow
@given(st.lists(records, max_size=4))
def test_every_record_comes_out_as_it_went_in(sent):
    assert Decoder().feed(protocol.encode(sent)) == sent


def test_a_vocabulary_comes_out_as_it_went_in():
    pieces = [b"a", b"\xff", "é".encode()]
    sent = Vocabulary(pieces=pieces, special=frozenset((2, 0)), strip_leading_space=True, clean_up=True, exact=False)
    [ready] = protocol.Decoder().feed(protocol.encode([protocol.Ready({}, sent.to_wire())]))
    assert Vocabulary.from_wire(ready.vocabulary) == sent


def test_an_oversized_frame_is_refused_before_its_body_comes():
    with pytest.raises(protocol.FrameError, match="1073741825 bytes"):
        Decoder().feed(struct.pack("<I", protocol.MAX_FRAME_BYTES + 1))


def test_the_largest_allowed_length_is_waited_for():
    assert Decoder().feed(struct.pack("<I", protocol.MAX_FRAME_BYTES)) == []


BODIES = [
    b"",
    b"oops",
    b"null",
    b"1",
    b'"tokens"',
    b'{"tokens": 1}',
    b"[1]",
    b"[[]]",
    b'[""]',
    b'[["nothing", 1]]',
    b'[[["tokens"], 1]]',
    b'[["tokens", 1]]',
    b'[["pong", 1, {}, 2]]',
    b'[["pong", 1, {}]',
    b"\xff\xfe",
    b"[" * 2000,
]


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_is_no_list_of_records_is_refused(body):
    with pytest.raises(protocol.FrameError):
        Decoder().feed(struct.pack("<I", len(body)) + body)


@pytest.mark.slow
@given(st.binary(max_size=60))
def test_garbage_is_refused_or_waited_for_but_never_a_record(body):
    with contextlib.suppress(protocol.FrameError):
        assert Decoder().feed(struct.pack("<I", len(body)) + body) == []


def test_every_kind_has_a_name_of_its_own():
    own = {cls for cls in vars(protocol).values() if isinstance(cls, type) and issubclass(cls, protocol.Record)}
    bases = {protocol.Record, protocol.NumberedRecord, protocol.DataRecord, protocol.PixelsRecord}
    assert own - bases == set(protocol.CORE_KINDS.values())
    assert len({cls.kind for cls in KINDS}) == len(KINDS) == 44


# --- attachments

SUBMIT = protocol.Submit(7, "x", False, None, False, {}, images=[[1, 2], [1, 1]])
PIXELS = [b"\0\x80\xff" * 2, b"abc"]
WITH_PIXELS = dataclasses.replace(SUBMIT, pixels=PIXELS)
TEXTS = ["caf\u00e9\n".encode(), "\U0001f600".encode()]
ATTACHED = [
    SOME[0],
    dataclasses.replace(WITH_PIXELS, prompt="", parts=2, texts=TEXTS),
    protocol.Encode(8, [], True, "a", 2, TEXTS),
    Pooled(1, [0], [3], [1], 2, bytes([1]) * 8),
    SOME[1],
    Pooled(2, [0], [3], [1], 2, bytes([2]) * 8),
    WITH_PIXELS,
]
"""Records of which most have attachments: the parts of long prompts, pixels, and vectors."""


def assert_attached(cuts):
    data = protocol.encode(SOME) + b"".join(protocol.attachments(ATTACHED)) + protocol.encode(ATTACHED)
    found = fed(data + protocol.encode([]) + protocol.encode([SUBMIT]), cuts)
    text = b"".join(TEXTS).decode()
    assert (found[5].prompt, found[5].pixels, found[6].texts) == (text, PIXELS, [text])
    assert [*found[:5], *found[7:]] == [*SOME, SOME[0], *ATTACHED[3:], SUBMIT]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_records_come_with_their_attachments(size):
    assert_attached(range(0, 2000, size))


@pytest.mark.slow
@given(st.lists(st.integers(0, 900), max_size=9))
def test_records_come_with_their_attachments_in_any_cut(cuts):
    assert_attached(cuts)


@pytest.mark.parametrize(("texts", "why"), [([b"a"], "submit without its"), ([b"a", b"\xff"], "not text")])
def test_a_long_prompt_without_its_parts_is_refused(texts, why):
    long = dataclasses.replace(SUBMIT, parts=2, texts=texts, images=[])
    with pytest.raises(protocol.FrameError, match=why):
        Decoder().feed(b"".join(protocol.attachments([long])) + protocol.encode([long]))


def test_pixels_that_belong_to_nothing_are_refused():
    with pytest.raises(protocol.FrameError, match="attachment without"):
        Decoder().feed(b"".join(protocol.attachments([WITH_PIXELS])) + protocol.encode(SOME))


def test_a_record_without_its_attachment_is_refused():
    sent = [Pooled(n, [0], [3], [1], 2, bytes(8)) for n in (1, 2)]
    with pytest.raises(protocol.FrameError, match="without its attachment"):
        Decoder().feed(b"".join(protocol.attachments(sent[:1])) + protocol.encode(sent))


def test_an_attachment_has_a_limit_too():
    with pytest.raises(protocol.FrameError):
        Decoder().feed(struct.pack("<I", protocol.ATTACHED | (protocol.MAX_FRAME_BYTES + 1)))
