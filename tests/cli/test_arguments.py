"""Options: flags, environment, help. Each is declared once, in config/."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lean_ovms.cli import completion
from lean_ovms.cli import main as cli_main
from lean_ovms.cli.arguments import COMMON, parse, parser, pointers
from lean_ovms.composition import compose
from lean_ovms.config import Config, listed
from lean_ovms.errors import StartError
from lean_ovms.features import NAMES


def test_flag_wins_over_environment_wins_over_default() -> None:
    environ = {"LEAN_OVMS_REST_PORT": "7", "LEAN_OVMS_PROMPT_LOOKUP": "true"}
    assert parse([], environ).rest_port == 7
    assert parse(["--rest_port", "8"], environ).rest_port == 8
    assert parse([], environ).value("prompt_lookup") is True


def test_a_choice_may_be_written_in_any_case() -> None:
    assert parse(["--log_level", "debug"], {"LEAN_OVMS_PIPELINE_TYPE": "paged"}).log_level == "DEBUG"
    assert parse([], {"LEAN_OVMS_PIPELINE_TYPE": "paged"}).pipeline_type == "PAGED"


def test_a_bare_boolean_flag_is_true_and_a_value_may_follow() -> None:
    assert parse(["--prompt_lookup"], {}).value("prompt_lookup") is True
    assert parse(["--enable_prefix_caching", "false"], {}).enable_prefix_caching is False
    assert parse(["--enable_prefix_caching=off"], {}).enable_prefix_caching is False


def test_the_api_key_comes_from_the_environment_and_never_goes_to_the_engine() -> None:
    config = parse([], {"API_KEY": "k"})
    assert config.api_key == "k"
    assert "api_key" not in config.for_engine(NAMES)
    config = parse(["--api-key", "typed"], {"API_KEY": "k"})  # vLLM's variable
    assert config.api_key == "typed"
    assert "api_key" not in config.for_engine(NAMES)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--qqq"], "unrecognized arguments: --qqq (--help lists the options)"),
        (["--rest-prot", "1"], "unrecognized arguments: --rest_prot (did you mean --rest_port?)"),
        (["--sse_ping_s", "nan"], "--sse_ping_s must be a finite number, not nan"),
        (["--task", "video"], "--task must be one of: text_generation, text2speech"),
        (["--grpc_workers", "2"], "--grpc_workers is not supported: this server has no gRPC service; use REST"),
        (["--shape=auto"], "--shape is not supported: it is for models of classical inference"),
        (["--reasoning-budget", "-9"], "--reasoning_budget must be a number of tokens, 0 for no reasoning, or -1"),
        (["--reasoning-format", "x"], "--reasoning_format must be one of none, auto, deepseek; it is 'x'"),
        (["--idle_sequence_cleanup"], "--idle_sequence_cleanup is not supported"),
        (
            ["--source_loras", "a=b"],
            "--source_loras is not supported: give the adapters of an image model as --lora_modules NAME=FILE",
        ),
        (["--normalize", "no"], "--normalize must be one of: true, false, not 'no'"),
        (["--rest_port", "x"], "--rest_port must be a whole number, not 'x'"),
        (["--rest_port", "70000"], "--rest_port must be at most 65535, not 70000"),
        (["--drain_timeout_s", "-1"], "--drain_timeout_s must be at least 0, not -1"),
        (["--prompt_lookup", "maybe"], "--prompt_lookup must be true or false, not 'maybe'"),
        (["--log_level", "LOUD"], "--log_level must be one of"),
        (["--ssl_certfile", "x"], "--ssl_certfile and --ssl_keyfile must be used together"),
        (["--ssl-ca-certs", "x"], "--ssl_ca_certs needs --ssl_certfile and --ssl_keyfile"),
        (["stray"], "there is no directory or file stray (models on the hub have names like OpenVINO/Qwen3"),
        (["sreve", "a/b"], "there is no command sreve (did you mean serve?)"),
        (["lst"], "there is no command lst (did you mean list?)"),
        (["serve", "a/b", "c/d"], "unrecognized arguments: c/d"),
        (["--rest_port", "1", "run", "a/b", "Hi"], "run is a command; commands must come first"),
        (["serve", "a/b", "--model_path", "x"], "a/b and --model_path cannot be used together"),
        (["serve", ""], "the model is empty"),
        (["-c", "many"], "--max_model_len must be a whole number, not 'many'"),
        (["--ctx-size", "xk"], "--ctx_size must be a number of tokens, such as 8192 or 8k; it is 'xk'"),
        (["--dtype", "int4"], "--dtype must be one of auto, float32"),
        (
            ["--limit-mm-per-prompt", '{"audio": 1}'],
            '--limit_mm_per_prompt must be {"image": N}, since only images are limited',
        ),
        (["--quantization", "awq"], "--quantization is not supported: quantize at the conversion"),
        (["--plugin_config.A.B", "1", "--plugin_config.A.B.C", "2"], "--plugin_config.A.B.C: B already has a value"),
        (["--tools", "all"], "--tools is not supported: functions are called by clients"),
        (["--logit-bias", "2"], "--logit_bias is not supported: send it with each request"),
        (["--spec-type", "draft-other"], "--spec_type must be one of none, ngram, ngram-simple"),
        (["--spec-method", "medusa"], "--spec_method must be one of none, ngram"),
        (["--spec-tokens", "many"], "--spec_tokens must be a number"),
        (["-rea", "maybe"], "-rea must be one of auto, on, off; it is 'maybe'"),
        (["--hf-overrides.a"], "--hf-overrides.a needs a value"),
        (["--speculative-config.method", "medusa"], '--speculative_config must be {"method": "ngram", "suffix"'),
        (["--speculative-config", "ngram"], "--speculative_config must be JSON (Expecting value"),
        (["--speculative-config", '{"method": "draft_model"}'], '--speculative_config must be {"method": "ngram"'),
        (["--speculative-config", "[]"], "--speculative_config must be "),
        (
            ["--limit-mm-per-prompt.audio=1"],
            '--limit_mm_per_prompt must be {"image": N}, since only images are limited',
        ),
        (["--no-enable-lora=x"], "argument --no_enable_lora: ignored explicit argument 'x'"),
        (["--no-such.member", "1"], "unrecognized arguments: --no_such"),
        (["--temp", "warm"], "--temp must be a number; it is 'warm'"),
        (["--pooling", "sum"], "--pooling must be one of: CLS, LAST, MEAN"),
        (["serv", "x"], "there is no command serv (did you mean serve?)"),
        (["chta", "http://h", "--system", "x"], "there is no command chta (did you mean chat?)"),
        (["serve", "a.gguf"], "there is no file a.gguf"),
        (["serve", "org/a.GGUF"], "there is no file org/a.GGUF"),
        (["pull", "demo"], "demo is included in lean_ovms: there is nothing to pull"),
        (["serve", "demo-embed", "--without=pooling"], "there is no directory or file demo-embed"),
    ],
)
def test_what_is_wrong_is_said_with_the_options_name(argv: list[str], message: str) -> None:
    with pytest.raises(StartError, match=re.escape(message)):
        parse(argv, {})


# --- options file


def options_file(directory: Path, text: str) -> str:
    path = directory / "options.json"
    path.write_text(text)
    return str(path)


def test_a_home_that_no_shell_has_expanded_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"log_path": "~/l"}')
    monkeypatch.setenv("HOME", str(tmp_path))
    config = parse(
        ["--model_path=~/m", "--options_file=~/options.json"], {"LEAN_OVMS_CACHE_DIR": "~/c", "API_KEY": "~/k"}
    )
    paths = (config.model_path, config.value("cache_dir"), config.log_path)
    assert paths == tuple(str(tmp_path / name) for name in "mcl")
    assert config.api_key == "~/k"


def test_an_options_file_is_behind_flags_and_environment(tmp_path: Path) -> None:
    path = options_file(
        tmp_path,
        '{"rest_port": 1, "model-name": "m", "sse_ping_s": 2, "plugin_config": {"A": 1}, "prompt_lookup": true}',
    )
    config = parse(["--options_file", path, "--rest_port", "3"], {"LEAN_OVMS_MODEL_NAME": "n"})
    assert (config.rest_port, config.model_name, config.sse_ping_s) == (3, "n", 2.0)
    assert config.value("prompt_lookup") is True
    assert config.plugin_config == '{"A": 1}'
    assert parse([], {"LEAN_OVMS_OPTIONS_FILE": path}).rest_port == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must contain a JSON object"),
        ('{"rest_prot": 1}', "there is no option 'rest_prot' (rest_port?)"),
        ('{"api_key": "k"}', "there is no option 'api_key' (api_key_file?)"),
        ('{"options_file": "x"}', "there is no option 'options_file'"),
        ('{"rest_port": 1, "rest_port": 2}', "is not valid JSON: an object contains the same name twice"),
        ('{"rest_port": 1, "rest-port": 2}', "rest_port is set twice"),
        ('{"rest_port": "1"}', 'rest_port must be a whole number, not "1"'),
        ('{"rest_port": true}', "rest_port must be a whole number, not true"),
        ('{"access_log": 1}', "access_log must be true or false, not 1"),
        ('{"rest_port": 70000}', "--rest_port must be at most 65535"),
    ],
)
def test_what_is_wrong_with_an_options_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StartError, match=re.escape(message)):
        parse(["--options_file", options_file(tmp_path, text)], {})


def test_an_empty_variable_says_nothing() -> None:
    assert parse([], {"LEAN_OVMS_REST_PORT": "", "LEAN_OVMS_MODEL_NAME": "", "API_KEY": ""}) == Config()


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("LEAN_OVMS_MODELPATH", "did you mean LEAN_OVMS_MODEL_PATH?"),
        ("LEAN_OVMS_model_path", "did you mean LEAN_OVMS_MODEL_PATH?"),
        ("LEAN_OVMS_OVMS_MODEL_REPOSITORY_PATH", "did you mean LEAN_OVMS_MODEL_REPOSITORY_PATH?"),
        ("LEAN_OVMS_PORT", "did you mean LEAN_OVMS_REST_PORT?"),
        ("LEAN_OVMS_XYZZY", "--help lists the options"),
    ],
)
def test_a_variable_that_is_no_option_stops_the_start_with_the_nearest_name(variable: str, near: str) -> None:
    with pytest.raises(StartError, match=re.escape(f"the environment variable {variable} does not")) as caught:
        parse([], {variable: "8001"})
    assert near in str(caught.value)


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_option() -> None:
    address = "tcp://10.0.0.1:8000"
    environ = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "8000", "SERVICE_PORT_HTTP": "8000", "PORT": address,
               "PORT_8000_TCP": address, "PORT_8000_TCP_PROTO": "tcp", "PORT_8000_TCP_PORT": "8000",
               "PORT_8000_TCP_ADDR": "10.0.0.1", "GPU_SERVICE_HOST": "10.0.0.1", "GPU_PORT": address}  # fmt: skip
    assert parse([], {f"LEAN_OVMS_{name}": value for name, value in environ.items()}) == Config()


@pytest.mark.parametrize("name", pointers())
def test_a_flag_that_should_point_to_a_model_and_is_empty_stops_the_start(name: str) -> None:
    """An unset shell variable has this effect."""
    for argv in ([f"--{name}", ""], [f"--{name}="]):
        with pytest.raises(StartError, match=f"--{name} is empty"):
            parse(argv, {})


def test_every_option_is_in_the_help_with_its_default() -> None:
    text = parser().format_help()
    for row in listed():
        assert (f"--{row.name} " in text) is not row.metadata["secret"]


OF_FEATURES = {"api_key_file", "metrics_enable", "reasoning_parser", "tool_parser"}
"""Common options that belong to features."""


def test_help_has_the_most_used_options_a_group_or_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for argv in (["--help"], ["-h"], ["--help=all"], ["--help", "limits"], ["--help=--max-images"]):
        with pytest.raises(SystemExit) as ended:
            parse(argv, {})
        assert ended.value.code == 0
        shown[argv[-1]] = set(re.findall(r"^  --(\w+)", capsys.readouterr().out, re.M))
    everything = {row.name for row in listed() if not row.metadata["secret"]}
    assert shown["--help"] == shown["-h"] == {*COMMON, *OF_FEATURES, *pointers()}
    assert not compose("").option_owners.keys() & {*COMMON}, "options of features say themselves that they are common"
    assert shown["--help=all"] == everything
    assert shown["limits"] == {row.name for row in listed() if row.metadata["group"] == "limits"}
    assert shown["--help=--max-images"] == {"max_images"}
    with pytest.raises(StartError, match=r"--help=nothing: there is no such topic; the topics are all, deployment, .*"):
        parse(["--help=nothing"], {})


def test_help_has_nothing_of_a_feature_that_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ("--max_resolution ", "pull ORG/NAME", "--api_key_file ", "a model of the hub, pulled")
    for argv, there in (
        (["--help=all"], [True, False, True, False]),
        (["--help"], [False, True, True, True]),
        (["--without", "images", "--help=all"], [False, False, True, False]),
        (["--help", "--without=hub,named_keys"], [False, False, False, False]),
    ):
        with pytest.raises(SystemExit) as ended:
            parse(argv, {})
        assert ended.value.code == 0
        out = capsys.readouterr().out
        assert [part in out for part in parts] == there
    with pytest.raises(StartError, match="--help=max_resolution: there is no such topic; the topics are all, "):
        parse(["--without=images", "--help=max_resolution"], {})
    with pytest.raises(StartError, match=r"--help=files: there is no such topic; the topics are (?!.*files, )"):
        parse(["--without=batches", "--help=files"], {})


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_knows_every_flag(shell: str) -> None:
    text = completion.script(shell)
    for row in listed():
        assert (re.search(rf"(--|-l ){row.name}\b", text) is not None) is not row.metadata["secret"]
    assert "PAGED" in text


def test_bash_completes_flags_and_values() -> None:
    ask = 'COMP_WORDS=(lean_ovms {words}); COMP_CWORD={last}; _lean_ovms; echo "${{COMPREPLY[@]}}"'
    for words, found in (("--rest_p", "--rest_port"), ("--log_level D", "DEBUG"), ("--no_such", "")):
        code = f"complete() {{ :; }}; {completion.script('bash')}{ask.format(words=words, last=len(words.split()))}"
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == found


def test_the_help_calls_no_default_none_which_is_a_value_of_some_options() -> None:
    assert "default: none" not in " ".join(parser().format_help().split())


@pytest.mark.slow
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from lean_ovms.cli.arguments import parser\n"
        "parser().format_help()\n"
        "print(*{m.split('.')[0] for m in sys.modules} & {'uvloop', 'jinja2', 'openvino', 'h11', 'numpy', 'asyncio'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_a_wrong_flag_ends_with_status_2_and_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "lean_ovms", "--qqq"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["lean_ovms: unrecognized arguments: --qqq (--help lists the options)"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("sys.version_info, sys.version = (3, 9, 1), '3.9.1 (main)'", "Python 3.10 or newer is needed, not 3.9.1"),
        ("sys.modules['orjson'] = None", "orjson .*in /.*: activate the virtual environment, or run: pip install ."),
    ],
)
def test_a_python_that_cannot_run_it_is_told_so_in_one_line(fault: str, said: str) -> None:
    code = f"import runpy, sys; {fault}; sys.argv[1:] = ['--rest_port', '0']; runpy.run_module('lean_ovms')"
    code = code.replace("run_module('lean_ovms')", "run_module('lean_ovms', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(rf"^lean_ovms: .*{said}$", done.stderr.splitlines()[-1])


@pytest.mark.parametrize(("argv", "variables"), [(["--without=chat"], {}), (["list"], {"LEAN_OVMS_WITHOUT": "chat"})])
def test_a_wrong_name_of_a_feature_ends_with_status_2_and_one_line(
    argv: list[str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["lean_ovms", *argv])
    with pytest.raises(SystemExit) as raised:
        cli_main._main()
    assert raised.value.code == 2
    assert capsys.readouterr().err == "lean_ovms: --without chat: this feature cannot be left out\n"


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), [("{", "is not valid JSON: .*char 1"), ("[1]", "is not a JSON object")])
def test_an_option_that_is_an_object_is_checked_at_once(text: str, message: str) -> None:
    for row in listed():
        if row.metadata["json_object"]:
            with pytest.raises(StartError, match=f"--{row.name} {message}"):
                parse([f"--{row.name}", text], {})


@pytest.mark.slow
def test_output_that_nobody_reads_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        command = [sys.executable, "-m", "lean_ovms", "--help=all"]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
