"""Forms: parts as slices, limits, broken bodies, and strings as values."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lean_ovms.api.fields import Field, FieldSet, read
from lean_ovms.api.queries import typed
from lean_ovms.errors import BadRequest, UnsupportedMediaType
from lean_ovms.features.uploads import forms
from lean_ovms.features.uploads.forms import Form, body_of, read_form
from lean_ovms.media.file_slice import FileSlice
from lean_ovms.types import Request
from lean_ovms.util.spool import Spool
from tests.forms import BOUNDARY, encoded, form_request

PATH = "/v1/audio/transcriptions"
FILE = ("file", ("a.wav", b"\r\n--" * 50 + bytes(range(256))))


def parsed(*parts: Any) -> Form:
    return read_form(form_request(PATH, parts))


def refusal(request: Request) -> str:
    with pytest.raises(BadRequest) as caught:
        read_form(request)
    return caught.value.message


def test_texts_and_files_in_any_order() -> None:
    form = parsed(("model", "w"), FILE, ("a[]", "1"), ("a[]", "zwei – ü"), ("empty", ""))
    assert form.values == [("model", "w"), ("a[]", "1"), ("a[]", "zwei – ü"), ("empty", "")]
    assert list(form.files) == ["file"]
    assert form.files["file"][0].name == "a.wav"
    assert form.files["file"][0].data == FILE[1][1]


def test_a_file_is_a_slice_of_the_body() -> None:
    request = form_request(PATH, [("model", "w"), FILE])
    assert read_form(request).files["file"][0].data.obj is request.body


def spooled(request: Request) -> Request:
    """Returns the same request with its body in a file."""
    request.spool, body = Spool(), request.body
    request.spool.write(memoryview(body))
    request.body = b""
    return request


CUT = [("model", "w"), ("empty", ""), ("b", f"\r\n--{BOUNDARY[:-1]}"), FILE, ("none", ("", b"")), ("prompt", "ü" * 40)]


def test_a_form_in_a_file_is_read_as_one_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parsed(*CUT)
    for piece in (*range(1, 90), 1 << 18):
        monkeypatch.setattr(forms, "PIECE", piece)
        request = spooled(form_request(PATH, CUT))
        form = read_form(request)
        assert form.values == expected.values, piece
        for name, [part] in expected.files.items():
            [found] = form.files[name]
            assert (found.name, found.data[:], len(found.data)) == (part.name, part.data, len(part.data)), piece
            assert isinstance(found.data, FileSlice)
            assert found.data[3:9] == part.data[3:9]
        request.drop_body()


def test_a_cut_form_in_a_file_is_refused() -> None:
    request = spooled(form_request(PATH, body=encoded(CUT)[:-4]))
    assert refusal(request).startswith("Failed to parse multipart data: ")
    request.drop_body()


def test_an_empty_file_is_a_file() -> None:
    assert parsed(("file", ("a.wav", b""))).files["file"][0].data == b""


@pytest.mark.parametrize(
    "disposition",
    [
        'form-data; name="file"; filename="a.wav"',
        "form-data; name=file; filename=a.wav",
        'form-data; filename="a;b.wav"; name="file"',
        "form-data; name=\"file\"; filename*=UTF-8''%C3%A4.wav",
        'form-data; name="file"; filename=""a.wav""',
        'FORM-DATA; name="file"; filename=""',
    ],
)
def test_spellings_of_a_file(disposition: str) -> None:
    body = f"--{BOUNDARY}\r\nContent-disposition: {disposition}\r\nX: y\r\n\r\nabc\r\n--{BOUNDARY}--\r\n".encode()
    assert read_form(form_request(PATH, body=body)).files["file"][0].data == b"abc"


def test_text_around_the_parts_is_ignored() -> None:
    body = b"\r\n" + encoded([("a", "b")]) + b"epilogue"
    assert read_form(form_request(PATH, body=body)).values == [("a", "b")]


def test_the_boundary_may_be_quoted() -> None:
    body = encoded([("a", "b")], "x y")
    form = read_form(form_request(PATH, body=body, content_type='Multipart/Form-Data; charset=x; boundary="x y"'))
    assert form.values == [("a", "b")]


WHOLE = encoded([("model", "w"), ("file", ("a", b"abc\r\n--0123456789abcde"))])


def test_a_cut_body_is_refused_wherever_it_is_cut() -> None:
    for length in range(len(WHOLE) - 4):
        why = refusal(form_request(PATH, body=WHOLE[:length]))
        assert why.startswith("Failed to parse multipart data: "), length


BROKEN = {
    "no boundary": (b"x", "multipart/form-data", "no boundary"),
    "long boundary": (b"x", f"multipart/form-data; boundary={'a' * 300}", "Boundary length 300"),
    "another boundary": (encoded([("a", "b")], "other"), "", ""),
    "json": (b'{"model": "w"}', "", ""),
    "many parts": (encoded([("a", "b")] * 65), "", "more than 64 parts"),
    "many headers": (b"--%b\r\n" % BOUNDARY.encode() + b"a: b\r\n" * 100, "", "header"),
    "a long header": (b"--%b\r\na: " % BOUNDARY.encode() + b"b" * 10000, "", "header size"),
    "no name": (
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; filename=a\r\n\r\nabc\r\n--{BOUNDARY}--\r\n".encode(),
        "",
        "a part has no name",
    ),
    "no disposition": (f"--{BOUNDARY}\r\nX: y\r\n\r\nabc\r\n--{BOUNDARY}--\r\n".encode(), "", "no name"),
    "base64": (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64\r\n\r\n'
        f"YQ==\r\n--{BOUNDARY}--\r\n".encode(),
        "",
        "transfer encoding",
    ),
    "not utf-8": (encoded([("a", b"\xff\xfe")]), "", "a is not UTF-8"),
    "a large text": (encoded([("prompt", b"x" * (forms.MAX_VALUE + 1))]), "", "prompt has more than 1048576 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_forms(name: str, caplog: pytest.LogCaptureFixture) -> None:
    body, media, why = BROKEN[name]
    headers = {"content_type": media} if media else {}
    with caplog.at_level(logging.WARNING):
        assert why in refusal(form_request(PATH, body=body, **headers))
    assert not caplog.records


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        *(
            ({"content_type": media}, "send the file in a form")
            for media in ("", "application/json", "text/plain", "application/x-www-form-urlencoded", "multi")
        ),
        ({"content_encoding": "gzip"}, "gzip"),
    ],
)
def test_another_media_type_and_a_compressed_form_are_a_415(headers: dict[str, str], why: str) -> None:
    with pytest.raises(UnsupportedMediaType, match=why):
        read_form(form_request(PATH, [("a", "b")], **headers))


# --- values

FIELDS = FieldSet((
    Field(name="flag", kind="bool", help="", default=False),
    Field(name="count", kind="int", help="", low=0, high=9),
    Field(name="size", kind="number", help="", low=0, high=2),
    Field(name="text", kind="string", help="", default="none"),
    Field(name="list", kind="array", help=""),
    Field(name="object", kind="any", help="", fields=(Field(name="size", kind="number", help=""),)),
))  # fmt: skip


def values(*pairs: tuple[str, str]) -> dict[str, Any]:
    return read(FIELDS, body_of(FIELDS, Form(list(pairs), {})))


@pytest.mark.parametrize(
    ("texts", "means"),
    [(["true", "True", "TRUE", "1", "yes", "on", " true "], True), (["false", "False", "0", "no", "off", ""], False)],
)
def test_texts_that_mean_true_and_false(texts: list[str], means: bool) -> None:
    assert [values(("flag", text))["flag"] for text in texts] == [means] * len(texts)


def test_numbers_and_texts() -> None:
    assert [values(("count", text))["count"] for text in ("7.0", "7.", "0.7e1", " 7 ")] == [7] * 4
    found = values(("count", "7"), ("size", "1e-1"), ("text", " as it is "))
    assert (found["count"], found["size"], found["text"]) == (7, 0.1, " as it is ")
    assert values(("size", "1"), ("text", "")) == {**values(), "size": 1.0}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("flag", "maybe", "flag accepts values true or false"),
        ("count", "1.5", "count is not an integer"),
        ("count", "1_0", "count is not an integer"),
        ("count", "１", "count is not an integer"),
        ("count", "9" * 5000, "count is not an integer"),
        ("count", "99", "count out of range [0, 9]"),
        ("size", "nan", "size is not a valid number"),
        ("size", "1e999", "size out of range"),
        ("size", "0x1", "size is not a valid number"),
        ("size", "-1", "size out of range"),
    ],
)
def test_what_is_no_value(name: str, text: str, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        values((name, text))
    assert caught.value.message.startswith(why)
    assert caught.value.param == name


def test_lists_in_both_spellings() -> None:
    assert values(("list[]", "a"), ("list", "b"), ("list[]", ""))["list"] == ["a", "b", ""]


def test_objects_by_member_and_as_json() -> None:
    assert values(("object[type]", "x"), ("object[size]", "2"))["object"] == {"type": "x", "size": 2.0}
    assert values(("object", '{"size": 2}'))["object"] == {"size": 2}
    assert values(("object", "{broken"))["object"] == "{broken"
    assert values(("object", "auto"))["object"] == "auto"
    assert values(("object", "{" + '"a":[' * 500))["object"]


def test_the_last_of_several_values_counts_and_unknown_names_stay() -> None:
    assert values(("count", "1"), ("count", "2"))["count"] == 2
    assert body_of(FIELDS, Form([("other", "x"), ("count[a]", "3"), ("n[a][]", "y")], {})) == {
        "other": "x",
        "count[a]": "3",
        "n[a][]": "y",
    }


def test_the_last_of_several_files_counts_unless_there_may_be_several() -> None:
    first, last = ("a", ("1.png", b"1")), ("a[]", ("2.png", b"2"))
    for kind, expected in (("any", "2.png"), ("array", ["1.png", "2.png"])):
        found = body_of(FieldSet((Field("a", kind, ""),)), parsed(first, last))["a"]
        assert expected == ([part.name for part in found] if kind == "array" else found.name)


def test_a_text_that_means_nothing_stays_a_text() -> None:
    assert typed(FIELDS[0], "perhaps") == "perhaps"
