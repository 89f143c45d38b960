"""Base64 as the URL standard reads it."""

from __future__ import annotations

import pytest

from lean_ovms.features.media_files.base64_text import decode_base64


@pytest.mark.parametrize("text", ["YWI/Pg==", "YWI/Pg", "YWI/Pg%3D%3D", "YWI%2FPg", " YW\tI/\r\nPg%20= = ", "YWI/\fPg"])
def test_blanks_percents_and_padding_change_nothing(text: str) -> None:
    assert decode_base64(text.encode()) == b"ab?>"


@pytest.mark.parametrize("text", ["Y", "YWI/Pg=", "YWI_Pg==", "YW=I", "YWI/P", "Y%ZZ", "=", "é"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_base64(text.encode())
