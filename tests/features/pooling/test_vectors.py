"""Number formats compared with numpy, and with the values that the formats define."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import orjson
import pytest

from lean_ovms.features.pooling import vectors
from lean_ovms.features.pooling.api.encoding import AT_ONCE, Encoding, _metadata
from lean_ovms.features.pooling.types import PooledOutput

SOME = np.array([0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 1e-8, 1e-3, 3.14159, 448.0, 0.5, 65504.0], "<f4")


def test_float16_is_numpys() -> None:
    assert vectors.packed(SOME.tobytes(), "float16", big_endian=False) == SOME.astype("<f2").tobytes()
    assert vectors.packed(SOME.tobytes(), "float16", big_endian=True) == SOME.astype(">f2").tobytes()


def test_big_endian_float32() -> None:
    assert vectors.packed(SOME.tobytes(), "float32", big_endian=True) == SOME.astype(">f4").tobytes()


def test_bfloat16_is_the_nearest_upper_half_ties_to_even() -> None:
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xBF80FFFF, 0x00000000], "<u4")
    found = np.frombuffer(vectors.packed(bits.tobytes(), "bfloat16", big_endian=False), "<u2")
    assert [hex(value) for value in found] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0xbf81", "0x0"]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (
            "fp8_e4m3",
            {-0.0: 0x80, 1.0: 0x38, -1.0: 0xB8, 448.0: 0x7E, 1e6: 0x7E, 2**-9: 0x01, 2**-10: 0x00,
             3 * 2**-10: 0x02, 0.1: 0x1D, -0.3: 0xAA, 1.0625: 0x38, 1.1875: 0x3A},
        ),
        (
            "fp8_e5m2",
            {0.0: 0x00, 1.0: 0x3C, -1.0: 0xBC, 57344.0: 0x7B, 1e9: 0x7B, 2**-16: 0x01, 2**-17: 0x00, 0.1: 0x2E,
             1.125: 0x3C, 1.375: 0x3E},
        ),
    ],
)  # fmt: skip
def test_fp8_codes(dtype: str, values: dict[float, int]) -> None:
    data = np.array(list(values), "<f4").tobytes()
    assert list(vectors.packed(data, dtype, big_endian=False)) == list(values.values())
    assert vectors.packed(data, dtype, big_endian=True) == vectors.packed(data, dtype, big_endian=False)


def test_fp8_e5m2_is_the_upper_half_of_float16() -> None:
    codes = [code for code in range(256) if code & 0x7F < 0x7C]
    exact = np.array([code << 8 for code in codes], "<u2").view("<f2").astype("<f4")
    assert list(vectors.packed(exact.tobytes(), "fp8_e5m2", big_endian=False)) == codes


def test_cosines() -> None:
    one = np.array([3, 4], "<f4").tobytes()
    others = [np.array(v, "<f4").tobytes() for v in ([3, 4], [-6, -8], [4, -3], [0, 0])]
    assert vectors.cosines([one], others) == pytest.approx([1, -1, 0, 0])
    assert vectors.cosines([one], []) == []
    assert vectors.cosines([one] * 600, others * 150) == pytest.approx([1, -1, 0, 0] * 150)


def test_numbers_in_json_are_the_shortest_of_their_float32() -> None:
    assert vectors.json(np.array([0.1, -2.5e-8], "<f4").tobytes(), (2,)) == b"[0.1,-2.5e-8]"
    assert vectors.json(np.zeros(4, "<f4").tobytes(), (2, 2)) == b"[[0.0,0.0],[0.0,0.0]]"


def test_sparse_vectors_have_the_positive_numbers_only() -> None:
    values = np.array([0, 0.1, -1, 2.5, 0], "<f4").tobytes()
    assert vectors.sparse_json(values) == b'[{"index":1,"value":0.1},{"index":3,"value":2.5}]'
    assert vectors.sparse_json(np.zeros(3, "<f4").tobytes()) == b"[]"


@pytest.mark.parametrize("shape", [(1,), (8191,), (8193,), (20_000,), (0, 16), (3, 5000), (5000, 3), (2, 20_000)])
def test_long_results_are_written_in_pieces(shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(1).normal(size=shape).astype("<f4")
    data = rows.tobytes()
    assert vectors.json(data, shape) == orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)
    if len(shape) == 1:
        positive = [{"index": at, "value": float(str(value))} for at, value in enumerate(rows) if value > 0]
        assert orjson.loads(vectors.sparse_json(data)) == positive


@pytest.mark.parametrize("numbers", [1, AT_ONCE // 4, AT_ONCE // 4 + 1, AT_ONCE])
def test_long_base64_is_written_in_pieces(numbers: int) -> None:
    data = np.arange(numbers, dtype="<f4").tobytes()
    written = Encoding("base64", "float32", "little").json(PooledOutput(data, 1, numbers, 1))
    assert written == b'"%b"' % b64encode(data)


def test_the_score_of_late_interaction_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [np.random.default_rng(seed).normal(size=(10, 4)).astype("<f4") for seed in range(2)]
    expected = (rows[0] @ rows[1].T).max(axis=1).sum()
    for at_once in (1, 3, 10):
        monkeypatch.setattr(vectors, "ROWS", at_once)
        [found] = vectors.max_sims([(rows[0].tobytes(), rows[1].tobytes())], 4)
        assert found == pytest.approx(float(expected))


def test_the_header_of_bytes_is_json_for_any_name_of_a_model() -> None:
    envelope = {"id": "embd-1", "created": 1, "model": "größe \N{SNOWMAN} \N{GRINNING FACE}"}
    outputs = [PooledOutput(bytes(8), 1, 2, 3)]
    text = _metadata(Encoding("bytes", "float32", "little"), outputs, [bytes(8)], envelope, {"prompt_tokens": 3})
    assert text.isascii()
    found = orjson.loads(text)
    assert found["model"] == envelope["model"]
    assert [(one["start"], one["end"], one["shape"]) for one in found["data"]] == [(0, 8, [2])]
