"""Options: flags, environment, help; each is spelled once in config.py."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from lean_ovms.cli import parse, parser
from lean_ovms.config import Config
from lean_ovms.errors import StartError


def test_without_anything_the_defaults_hold() -> None:
    assert parse([], {}) == Config()


def test_hyphens_and_underscores_are_the_same() -> None:
    assert parse(["--rest-port", "1"], {}) == parse(["--rest_port=1"], {}) == Config(rest_port=1)


def test_a_value_keeps_its_hyphens() -> None:
    assert parse(["--model-name", "my-model"], {}).model_name == "my-model"
    assert parse(["--model-name=my-model"], {}).model_name == "my-model"


def test_flag_wins_over_environment_wins_over_default() -> None:
    environ = {"LEAN_OVMS_REST_PORT": "7", "LEAN_OVMS_PROMPT_LOOKUP": "true"}
    assert parse([], environ).rest_port == 7
    assert parse(["--rest_port", "8"], environ).rest_port == 8
    assert parse([], environ).prompt_lookup is True


def test_a_bare_boolean_flag_is_true_and_a_value_may_follow() -> None:
    assert parse(["--prompt_lookup"], {}).prompt_lookup is True
    assert parse(["--enable_prefix_caching", "false"], {}).enable_prefix_caching is False
    assert parse(["--enable_prefix_caching=off"], {}).enable_prefix_caching is False


def test_the_api_key_comes_from_the_environment_and_never_goes_to_the_engine() -> None:
    config = parse([], {"API_KEY": "k"})
    assert config.api_key == "k"
    assert "api_key" not in config.for_engine()
    with pytest.raises(StartError):
        parse(["--api_key", "k"], {})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--no_such"], "unrecognized arguments: --no_such"),
        (["--rest_port", "x"], "--rest_port takes a whole number, not 'x'"),
        (["--rest_port", "70000"], "--rest_port must be at most 65535, not 70000"),
        (["--drain_timeout_s", "-1"], "--drain_timeout_s must be at least 0, not -1"),
        (["--prompt_lookup", "maybe"], "--prompt_lookup takes true or false, not 'maybe'"),
        (["--log_level", "LOUD"], "--log_level must be one of"),
        (["--ssl_certfile", "x"], "--ssl_certfile and --ssl_keyfile go together"),
        (["stray"], "unrecognized arguments: stray"),
    ],
)
def test_what_is_wrong_is_said_with_the_options_name(argv: list[str], message: str) -> None:
    with pytest.raises(StartError, match=message.replace("(", r"\(")):
        parse(argv, {})


def test_every_option_is_in_the_help_with_its_default() -> None:
    text = parser().format_help()
    for row in fields(Config):
        assert (f"--{row.name} " in text) is not row.metadata["secret"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from lean_ovms.cli import parser\n"
        "parser().format_help()\n"
        "print(*{m.split('.')[0] for m in sys.modules} & {'uvloop', 'jinja2', 'openvino', 'h11', 'numpy', 'asyncio'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_wrong_flag_ends_with_status_2_and_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "lean_ovms", "--nope"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["lean_ovms: unrecognized arguments: --nope (--help lists the options)"]
