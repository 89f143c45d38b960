"""A server without the feature gguf rejects GGUF files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.errors import StartError
from lean_ovms.server.run import build


def test_a_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    config = parse(
        ["--model_path", str(path), "--model_name", "m", "--without", "gguf", "--task", "text_generation"], {}
    )
    wrong = r"x\.gguf cannot be served: the feature gguf, which reads GGUF files, is off: left out by --without"
    with pytest.raises(StartError, match=wrong):
        build(config)


@pytest.mark.parametrize("argv", [["serve", "org/m:Q4_K_M"], ["-hf", "org/m:Q4_K_M"]])
def test_a_quantization_is_refused(argv: list[str]) -> None:
    with pytest.raises(StartError, match="this needs the option --gguf_filename of a feature that was left out"):
        parse([*argv, "--without", "gguf"], {})
