"""Options: flags, environment, help; each is spelled once in config/."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import lean_ovms
from lean_ovms.cli import completion, foreign_flags
from lean_ovms.cli import main as cli_main
from lean_ovms.cli.arguments import COMMON, parse, parser, pointers
from lean_ovms.composition import compose, manifests
from lean_ovms.config import DEMO_MODEL, Config, listed
from lean_ovms.errors import StartError
from lean_ovms.features import NAMES
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from lean_ovms.text.parsers import registry


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
    assert parse([], environ).value("prompt_lookup") is True


def test_a_bare_boolean_flag_is_true_and_a_value_may_follow() -> None:
    assert parse(["--prompt_lookup"], {}).value("prompt_lookup") is True
    assert parse(["--enable_prefix_caching", "false"], {}).enable_prefix_caching is False
    assert parse(["--enable_prefix_caching=off"], {}).enable_prefix_caching is False


def test_the_api_key_comes_from_the_environment_and_never_goes_to_the_engine() -> None:
    config = parse([], {"API_KEY": "k"})
    assert config.api_key == "k"
    assert "api_key" not in config.for_engine(NAMES)
    config = parse(["--api-key", "typed"], {"API_KEY": "k"})  # vLLM's
    assert config.api_key == "typed"
    assert "api_key" not in config.for_engine(NAMES)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--no_such"], "unrecognized arguments: --no_such (--help lists the options)"),
        (["--rest-prot", "1"], "unrecognized arguments: --rest_prot (did you mean --rest_port?)"),
        (["--sse_ping_s", "nan"], "--sse_ping_s must be a finite number, not nan"),
        (["--task", "video"], "--task video is not served, only text_generation, text2speech"),
        (["--grpc_workers", "2"], "--grpc_workers is not possible: this server has no gRPC service; use REST"),
        (["--shape=auto"], "--shape is not possible: it is for models that are not generative"),
        (
            ["--reasoning-budget", "9"],
            "--reasoning_budget takes 0 or -1; send thinking_token_budget with a request for",
        ),
        (["--reasoning-format", "x"], "--reasoning_format takes one of none, auto, deepseek, not 'x'"),
        (["--idle_sequence_cleanup"], "--idle_sequence_cleanup is not possible"),
        (
            ["--source_loras", "a=b"],
            "--source_loras is not possible: give the adapters of an image model as --lora_modules NAME=FILE",
        ),
        (["--normalize", "no"], "--normalize must be one of true, false, not 'no'"),
        (["--rest_port", "x"], "--rest_port takes a whole number, not 'x'"),
        (["--rest_port", "70000"], "--rest_port must be at most 65535, not 70000"),
        (["--drain_timeout_s", "-1"], "--drain_timeout_s must be at least 0, not -1"),
        (["--prompt_lookup", "maybe"], "--prompt_lookup takes true or false, not 'maybe'"),
        (["--log_level", "LOUD"], "--log_level must be one of"),
        (["--ssl_certfile", "x"], "--ssl_certfile and --ssl_keyfile go together"),
        (["--ssl-ca-certs", "x"], "--ssl_ca_certs needs --ssl_certfile and --ssl_keyfile"),
        (
            ["stray"],
            "there is no directory or file stray (a hub's model has the form organisation/name, such as OpenVINO/Qwen3",
        ),
        (["sreve", "a/b"], "there is no command sreve (did you mean serve?)"),
        (["lst"], "there is no command lst (did you mean list?)"),
        (["serve", "a/b", "c/d"], "unrecognized arguments: c/d"),
        (["serve", "a/b", "--model_path", "x"], "a/b and --model_path exclude each other"),
        (["serve", ""], "the model is empty"),
        (["-c", "many"], "--max_model_len takes a whole number, not 'many'"),
        (["--ctx-size", "xk"], "--ctx_size takes a number of tokens, such as 8192 or 8k, not 'xk'"),
        (["--dtype", "int4"], "--dtype takes one of auto, float32"),
        (
            ["--limit-mm-per-prompt", '{"audio": 1}'],
            '--limit_mm_per_prompt takes {"image": N}; only images are limited',
        ),
        (["--quantization", "awq"], "--quantization is not possible: quantize at the conversion"),
        (["--plugin_config.A.B", "1", "--plugin_config.A.B.C", "2"], "--plugin_config.A.B.C: B has a value already"),
        (["--tools", "all"], "--tools is not possible: functions are called by clients"),
        (["--mirostat", "2"], "--mirostat is not possible: there is no such sampler"),
        (
            ["--spec-type", "draft-other"],
            "--spec_type takes one of none, ngram, ngram-simple",
        ),
        (["--spec-method", "medusa"], "--spec_method takes one of none, ngram"),
        (["--spec-tokens", "many"], "--spec_tokens takes a number"),
        (["-rea", "maybe"], "-rea takes one of auto, on, off, not 'maybe'"),
        (["--hf-overrides.a"], "--hf-overrides.a needs a value"),
        (
            ["--speculative-config.method", "medusa"],
            '--speculative_config takes {"method": "ngram", "suffix"',
        ),
        (["--speculative-config", "ngram"], "--speculative_config takes JSON (Expecting value"),
        (["--speculative-config", '{"method": "draft_model"}'], '--speculative_config takes {"method": "ngram"'),
        (["--speculative-config", "[]"], "--speculative_config takes "),
        (["--limit-mm-per-prompt.audio=1"], '--limit_mm_per_prompt takes {"image": N}; only images are limited'),
        (["--no-enable-lora=x"], "argument --no_enable_lora: ignored explicit argument 'x'"),
        (["--no-such.member", "1"], "unrecognized arguments: --no_such"),
        (["--temp", "warm"], "--temp takes a number, not 'warm'"),
        (["--pooling", "sum"], "--pooling must be one of CLS, LAST, MEAN"),
        (["serv", "x"], "there is no command serv (did you mean serve?)"),
        (["chta", "http://h", "--system", "x"], "there is no command chta (did you mean chat?)"),
        (["serve", "a.gguf"], "there is no file a.gguf"),
        (["serve", "org/a.GGUF"], "there is no file org/a.GGUF"),
        (["pull", "demo"], "demo is part of the package: there is nothing to pull"),
        (["serve", "demo-embed", "--without=pooling"], "there is no directory or file demo-embed"),
    ],
)
def test_what_is_wrong_is_said_with_the_options_name(argv: list[str], message: str) -> None:
    with pytest.raises(StartError, match=re.escape(message)):
        parse(argv, {})


OVMS_COMMANDS = [
    "--port 9000 --rest_port 8000 --rest_workers 16 --model_path /models/m --model_name org/m --log_level DEBUG",
    "--rest_port 8000 --model_path /m --task text_generation --target_device GPU --cache_size 8 --max_num_seqs 128 "
    "--pipeline_type LM_CB --enable_prefix_caching true --dynamic_split_fuse false --max_num_batched_tokens 1024 "
    "--tool_parser hermes3 --reasoning_parser qwen3 --enable_tool_guided_generation true --kv_cache_precision u8 "
    "--cache_interval_multiplier 4 --cache_dir /opt/cache",
    "--rest_port 8000 --model_path /m --target_device NPU --max_prompt_len 2000 "
    "--model_distribution_policy PIPELINE_PARALLEL",
    "--config_path /models/config.json --rest_port 8000 --rest_bind_address 127.0.0.1,::1 --metrics_enable "
    "--file_system_poll_wait_seconds 0 --api_key_file /run/key --allowed_origins https://a.example "
    "--allowed_methods GET,POST --allowed_headers X-Own --allow_credentials",
]
"""As OVMS's documentation has them, and combinations of its tables."""


@pytest.mark.parametrize("line", OVMS_COMMANDS)
def test_ovms_command_lines_are_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = parse(line.split(), {})
    assert config.rest_port == 8000  # OVMS's --port is that of gRPC, when --rest_port is given too
    assert config.model_path or config.model_list
    assert ("lean_ovms: --port has no effect: " in capsys.readouterr().err) is ("--port" in line.split())


def test_flags_without_effect_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--rest-workers=8", "--verbose_response", "-tp", "2", "--enforce-eager"], {}) == Config()
    said = capsys.readouterr().err.splitlines()
    assert sorted(line.split(" has")[0] for line in said) == [
        f"lean_ovms: {flag}" for flag in ("--enforce_eager", "--rest_workers", "--verbose_response", "-tp")
    ]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("--model org/name", {"source_model": "org/name"}),
        ("serve --model .", {"model_path": "."}),
        ("--max-num-queued-reqs 9 --sse-keep-alive-interval 5 --max-num-scheduled-tokens 64 --spec-model d",
         {"max_queued_requests": 9, "sse_ping_s": 5.0, "max_num_batched_tokens": 64, "draft_model_path": "d"}),
        ("--kv-cache-memory-bytes 4294967296 --tool-strict-level parameter --max-logprobs -1",
         {"cache_size": 4, "enable_tool_guided_generation": True, "max_logprobs": -1}),
        ("--kv-cache-memory-bytes 2G --tool-strict-level auto", {"cache_size": 2}),
        ("--structured-outputs-config {\"backend\":\"xgrammar\"}", {"structured_output_backend": "xgrammar"}),
        ("--disable-access-log-for-endpoints /health --enable-eplb --numa-bind --mm-processor-cache-gb 4", {}),
        ("--guided-decoding-backend xgrammar:no-fallback --guided-decoding-disable-any-whitespace", {}),
        ("-b 2048 -ub 512 -tb 4 -cram 100 --no-context-shift --embeddings --runner pooling --kv-unified", {}),
    ],
)  # fmt: skip
def test_flags_of_common_command_lines(line: str, changed: dict[str, str]) -> None:
    assert parse(line.split(), {}) == Config(**changed)


@pytest.mark.parametrize(("line", "words"), [
    ("--model a/b --model_path c", "a/b and --model_path exclude each other"),
    ("serve a/b --model c/d", "unrecognized arguments: c/d"),
    ("--pooler-config x", "--pooling"), ("--logits-processors a.b", "no code"), ("--grpc", "--rest_port"),
    ("--tool-strict-level function", "auto or parameter"), ("--kv-cache-memory-bytes many", "not 'many'"),
    ('--structured-outputs-config {"backend":"xgrammar","disable_any_whitespace":true}', '{"backend": NAME}'),
    ("-hft secret", "HF_TOKEN"), ("--config x.yaml", "--options_file"),
])  # fmt: skip
def test_flags_that_are_pointed_to(line: str, words: str) -> None:
    with pytest.raises(StartError) as error:
        parse(line.split(), {})
    assert words in str(error.value)


def words_of(flag: str) -> Mapping[str, str]:
    """What the values of a flag of another server are here."""
    [alias] = [alias for alias in foreign_flags.known().aliases if flag in alias.names]
    return alias.words


def test_vllms_names_of_parsers_are_those_of_parsers_here() -> None:
    known = registry()
    assert set(words_of("tool_call_parser").values()) <= set(known.tool_names)
    assert set(words_of("reasoning_parser").values()) <= set(known.reasoning_names)
    config = parse(["--tool-call-parser", "glm47", "--reasoning-parser", "glm45"], {})
    assert (config.tool_parser, config.reasoning_parser) == ("glm4_moe", "qwen3")


VLLM_TOOL_PARSERS = """apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4
deepseek_v41 dots ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hunyuan_a13b
hy_v3 hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json llama4_pythonic longcat
mimo minicpm5 minimax_m2 minimax_m3 mistral muse muse_glimmer musespark1x olmo3 openai phi4_mini_json plamo3 poolside_v1
pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 step5 xlam"""
VLLM_REASONING_PARSERS = """cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45
gemma4 glm45 glm47 granite granite_thinking_parser holo2 hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2 kimi_k3
ling3 mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse muse_glimmer musespark1x nemotron_v3
olmo3 openai_gptoss plamo3 poolside_v1 qwen3 seed_oss step3 step3p5 step5"""


def test_every_name_of_vllms_registry_is_known() -> None:
    """All but hf and beam, which read a format that stands in the model's own files."""
    known = registry()
    tool, reasoning = words_of("tool_call_parser"), words_of("reasoning_parser")
    assert {tool.get(name, name) for name in VLLM_TOOL_PARSERS.split()} <= set(known.tool_names)
    assert {reasoning.get(name, name) for name in VLLM_REASONING_PARSERS.split()} <= set(known.reasoning_names)


@pytest.mark.parametrize(
    ("tool", "reasoning", "found"),
    [
        ("hunyuan_a13b", "hunyuan_a13b", ("hunyuan_a13b", "hunyuan_a13b")),
        ("ernie45", "ernie45", ("ernie45", "ernie45")),
        ("cohere_command3", "cohere_command4", ("cohere_command", "cohere_command")),
        ("step3", "step3", ("step3", "deepseek_r1")),
        ("granite-20b-fc", "qwen3", ("granite_20b_fc", "qwen3")),
        ("apertus", "apertus", ("apertus", "apertus")),
        ("functiongemma", "gemma4", ("functiongemma", "gemma4")),
        ("gigachat3", "minimax_m2_append_think", ("gigachat3", "minimax_m2_append_think")),
        ("step3p5", "step3p5", ("qwen3coder", "qwen3")),
        ("step5", "step5", ("qwen3coder", "deepseek_r1")),
        ("ling3", "ling3", ("glm4_moe", "qwen3")),
        ("muse_glimmer", "muse", ("onyx", "onyx")),
        ("dots", "granite", ("dots", "granite")),
        ("kimi_k3", "minicpmv", ("kimi_k3", "qwen3")),
    ],
)
def test_vllms_name_of_a_parser_chooses_it(tool: str, reasoning: str, found: tuple[str, str]) -> None:
    config = parse(["--tool-call-parser", tool, "--reasoning-parser", reasoning], {})
    assert (config.tool_parser, config.reasoning_parser) == found


def test_a_foreign_flag_is_no_option_too_and_has_one_meaning() -> None:
    known, names = foreign_flags.known(), {row.name for row in listed()}
    without_effect = [word.partition("=")[0] for line in flag_lines() if " = " not in line for word in line.split()]
    assert set(without_effect) == known.ignored.keys() | known.refused.keys()
    assert not names & set(without_effect)
    found = without_effect + [name for alias in known.aliases for name in alias.names]
    assert sorted(found) == sorted(set(found))
    assert {alias.option for alias in known.aliases + known.variables} <= names


def flag_lines() -> Iterator[str]:
    """The lines with flags of all files that have some."""
    for path in sorted(Path(lean_ovms.__file__).parent.rglob("flags.txt")):
        yield from (line for line in path.read_text("utf-8").splitlines() if re.match(r" {4}\S", line))


def test_every_file_with_flags_is_that_of_the_core_or_named_by_a_manifest() -> None:
    package = Path(lean_ovms.__file__).parent
    of_features = {path for _, path in compose().flags}
    assert {*package.rglob("flags.txt")} == {package / "cli" / "flags.txt", *of_features}


SHARING = ",".join(one.name for one in manifests() if one.libraries and not one.essential)
"""The features that share options: these are gone where all of the features are left out."""


@pytest.mark.parametrize("left_out", ["", SHARING, *(one.name for one in manifests() if not one.essential)])
def test_flags_set_options_that_there_are(left_out: str) -> None:
    known, names = foreign_flags.known(left_out), {row.name for row in listed(left_out)}
    assert {alias.option for alias in known.aliases + known.variables} <= names
    assert {alias.further for alias in known.aliases} - {""} <= names


def test_flags_of_a_feature_go_with_it() -> None:
    assert parse(["--spec-model", "d"], {}) == Config(draft_model_path="d")
    with pytest.raises(StartError, match="unrecognized arguments: --spec"):
        parse(["--spec-model", "d", "--without", "drafting"], {})
    assert parse(["--task", "embed"], {}) == Config(task="embeddings")
    with pytest.raises(StartError, match="--task embed is not served"):
        parse(["--task", "embed", "--without", "pooling"], {})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("serve /models/m --host 127.0.0.1 --port 9000", {"model_path": "/models/m", "rest_bind_address": "127.0.0.1",
                                                         "rest_port": 9000}),
        ("serve org/m --served-model-name chat", {"source_model": "org/m", "model_name": "chat"}),
        ("--port 9000 serve --enable-auto-tool-choice org/m --tool-call-parser hermes", {"rest_port": 9000,
            "source_model": "org/m", "tool_parser": "hermes3"}),
        ("/m --dtype bfloat16 --plugin_config {\"A\":\"B\"}", {"model_path": "/m",
            "plugin_config": '{"INFERENCE_PRECISION_HINT": "bf16", "A": "B"}'}),
        ("/m --max-model-len 8k --kv-cache-dtype auto", {"model_path": "/m", "max_model_len": 8000}),
        ("/m --max-model-len auto --no-enable-prefix-caching", {"model_path": "/m", "enable_prefix_caching": False}),
        ("/m --generation-config vllm", {"model_path": "/m", "generation_config_path": "none"}),
        ("/m --generation-config /g/", {"model_path": "/m", "generation_config_path": "/g/generation_config.json"}),
        ('/m --allowed-origins ["https://a","https://b"]', {"model_path": "/m", "allowed_origins": "https://a,https://b"}),
        ("/m --limit-mm-per-prompt image=4 --uds /s", {"model_path": "/m", "max_images": 4, "unix_socket": "/s"}),
        ("-m /m/x.gguf -c 4096 -np 4 -v -a chat --metrics", {"model_path": "/m/x.gguf", "max_model_len": 4096,
            "max_num_seqs": 4, "log_level": "DEBUG", "model_name": "chat", "metrics_enable": True}),
        ("-hf org/m-GGUF -hff m.gguf -t 2", {"source_model": "org/m-GGUF", "gguf_filename": "m.gguf",
            "plugin_config": '{"INFERENCE_NUM_THREADS": 2}'}),
        ("pull org/m", {"pull": True, "source_model": "org/m"}),
        ("list --download-dir /models", {"list_models": True, "model_repository_path": "/models"}),
        ("--metrics_enable serve /m", {"metrics_enable": True, "model_path": "/m"}),
        ("--metrics_enable /m", {"metrics_enable": True, "model_path": "/m"}),
        ("--trust-remote-code /m", {"model_path": "/m"}),
        ("serve org/m --served-model-name a b/c d", {"source_model": "org/m", "model_name": "a",
            "model_aliases": "b/c d"}),
        ("serve --served-model-name a b /tmp", {"model_path": "/tmp", "model_name": "a", "model_aliases": "b"}),
        ("-m /m -a chat,other", {"model_path": "/m", "model_name": "chat", "model_aliases": "other"}),
        ("/m --override-generation-config.temperature 0.5 --override-generation-config.stop+=a,b", {"model_path": "/m",
            "override_generation_config": '{"temperature": 0.5, "stop": ["a", "b"]}'}),
        ("/m --structured-outputs-config.backend=xgrammar --limit-mm-per-prompt.image 4", {"model_path": "/m",
            "structured_output_backend": "xgrammar", "max_images": 4}),
        ("/m --plugin_config.A x --dtype bfloat16 --plugin-config.B.C 1", {"model_path": "/m",
            "plugin_config": '{"INFERENCE_PRECISION_HINT": "bf16", "A": "x", "B": {"C": 1}}'}),
        ("/m.x -cc.mode 3 --served-model-name=a.b", {"model_path": "/m.x", "model_name": "a.b"}),
        ("-m /m -ctv q8_0 -fit off -cmoe -nkvo --no-repack --numa distribute --prio 2 --poll 0 -sps 0.5 --no-ui "
            "--slot-save-path /s --log-colors off --no-mmproj --draft-max 16 --cache-prompt --no-agent", {
            "model_path": "/m", "value_cache_precision": "u8", "web_page": False, "slot_save_path": "/s"}),
        ("-m /m -hfd org/d -rea off --chat-template-kwargs {\"a\":1} --api-prefix /llm --sse-ping-interval -1", {
            "model_path": "/m", "draft_source_model": "org/d", "root_path": "/llm", "sse_ping_s": 0,
            "default_chat_template_kwargs": '{"enable_thinking": false, "a": 1}'}),
        ("-m /m --reasoning auto --spec-draft-model /d --log-verbose", {"model_path": "/m", "draft_model_path": "/d",
            "log_level": "DEBUG"}),
        ("-m /m --cors-origins localhost --no-cors-credentials", {"model_path": "/m", "allowed_origins": "localhost"}),
        ("--no-enable-lora --no-async-scheduling /m --no-enable-flash-late-interaction", {"model_path": "/m"}),
        ("vllm serve org/m --port 9000", {"source_model": "org/m", "rest_port": 9000}),
        ("ollama pull hf.co/org/m:Q8_0", {"pull": True, "source_model": "org/m", "gguf_filename": "Q8_0"}),
        ("/usr/bin/ovms --rest_port 9000 --model_path /m", {"rest_port": 9000, "model_path": "/m"}),
        ("llama-server -hf org/m-GGUF:Q4_K_M --temp 0.7 --top-p 0.9 --top-k 20 --min-p 0.1 --seed 5 "
            "--repeat-penalty 1.1", {"source_model": "org/m-GGUF", "gguf_filename": "Q4_K_M",
            "override_generation_config":
            '{"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 5, "repetition_penalty": 1.1}'}),
        ("/m -s -1 --presence-penalty -1.5 --override-generation-config.top_k 3", {"model_path": "/m",
            "override_generation_config": '{"presence_penalty": -1.5, "top_k": 3}'}),
        ("/m --embeddings --pooling mean", {"model_path": "/m", "pooling": "MEAN"}),
        ("/m --embeddings --pooling none", {"model_path": "/m", "pooling": "ALL"}),
        ("/m --rerank --pooling rank", {"model_path": "/m"}),
        ('/m --speculative-config {"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":3}', {
            "model_path": "/m", "prompt_lookup": True,
            "override_generation_config": '{"num_assistant_tokens": 4, "max_ngram_size": 3}'}),
        ('/m --speculative-config.model org/d --speculative-config.method eagle3', {
            "model_path": "/m", "draft_source_model": "org/d", "draft_eagle3_mode": True}),
        ('/m --speculative-config {"method":"suffix","num_speculative_tokens":16}', {
            "model_path": "/m", "prompt_lookup": True,
            "override_generation_config": '{"num_assistant_tokens": 16, "max_ngram_size": 24}'}),
        ("/m --spec-method ngram --spec-tokens 4", {"model_path": "/m", "prompt_lookup": True,
            "override_generation_config": '{"num_assistant_tokens": 4}'}),
        ('/m --speculative-config {"method":"dflash","model":"org/d"}', {
            "model_path": "/m", "draft_source_model": "org/d"}),
        ("/m --spec-method eagle3 --spec-model /d", {"model_path": "/m", "draft_model_path": "/d",
            "draft_eagle3_mode": True}),
        ("-m /m --spec-type ngram-map-k", {"model_path": "/m", "prompt_lookup": True}),
        ("-m /m --spec-type none", {"model_path": "/m", "ngram_speculation": False, "mtp": "false"}),
        ("-m /m --spec-type draft-mtp", {"model_path": "/m", "mtp": "true"}),
        ("/m --spec-method mtp --spec-tokens 2", {"model_path": "/m", "mtp": "true",
            "override_generation_config": '{"num_assistant_tokens": 2}'}),
        ('/m --speculative-config {"method":"mtp","num_speculative_tokens":1}', {"model_path": "/m", "mtp": "true",
            "override_generation_config": '{"num_assistant_tokens": 1}'}),
        ("-m /m --spec-type draft-simple -md /d", {"model_path": "/m", "draft_model_path": "/d"}),
        ("-m /m --spec-default", {"model_path": "/m", "prompt_lookup": True}),
        ('/m --speculative-config.model /tmp', {"model_path": "/m", "draft_model_path": "/tmp"}),
        ("llama-server -m /m -b 2048 --batch-size 2048 -ub 512 --n-predict -1", {"model_path": "/m"}),
        ("-m /m --reasoning-format none --reasoning-effort low --reasoning-budget 0", {"model_path": "/m",
            "reasoning_parser": "none",
            "default_chat_template_kwargs": '{"reasoning_effort": "low", "enable_thinking": false}'}),
        ("-m /m --reasoning-format auto --reasoning-budget -1 --spec-ngram-mod-n-min 8", {"model_path": "/m"}),
        ("-m /m --n-predict 64", {"model_path": "/m", "max_tokens_limit": 64, "clamp_max_tokens": True}),
        ("demo", {"model_path": str(DEMO_MODEL), "model_name": "demo"}),
        ("serve demo-embed", {"model_path": str(DEMO_EMBED), "model_name": "demo-embed"}),
        ("serve demo --model_name x", {"model_path": str(DEMO_MODEL), "model_name": "x"}),
        ("pull -hf org/m:Q8_0", {"pull": True, "source_model": "org/m", "gguf_filename": "Q8_0"}),
        ("/m --response-role assistant --trust-request-chat-template", {"model_path": "/m",
            "trust_request_chat_template": True}),
    ],
)  # fmt: skip
def test_commands_of_vllm_llama_cpp_and_ollama_are_understood(line: str, expected: dict[str, object]) -> None:
    assert parse(line.split(), {}) == Config(**expected)  # type: ignore[arg-type]


# --- options file


def options_file(directory: Path, text: str) -> str:
    path = directory / "options.json"
    path.write_text(text)
    return str(path)


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
        ("[]", "must hold a JSON object"),
        ('{"rest_prot": 1}', "there is no option 'rest_prot' (rest_port?)"),
        ('{"api_key": "k"}', "there is no option 'api_key'"),
        ('{"options_file": "x"}', "there is no option 'options_file'"),
        ('{"rest_port": "1"}', 'rest_port takes a whole number, not "1"'),
        ('{"rest_port": true}', "rest_port takes a whole number, not true"),
        ('{"access_log": 1}', "access_log takes true or false, not 1"),
        ('{"rest_port": 70000}', "--rest_port must be at most 65535"),
    ],
)
def test_what_is_wrong_with_an_options_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StartError, match=re.escape(message)):
        parse(["--options_file", options_file(tmp_path, text)], {})


def test_a_missing_options_file_is_said() -> None:
    with pytest.raises(StartError, match="--options_file /no/such: No such file"):
        parse(["--options_file", "/no/such"], {})


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
    with pytest.raises(StartError, match=re.escape(f"the environment has {variable}, but")) as caught:
        parse([], {variable: "8001"})
    assert near in str(caught.value)


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_option() -> None:
    address = "tcp://10.0.0.1:8000"
    environ = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "8000", "SERVICE_PORT_HTTP": "8000", "PORT": address,
               "PORT_8000_TCP": address, "PORT_8000_TCP_PROTO": "tcp", "PORT_8000_TCP_PORT": "8000",
               "PORT_8000_TCP_ADDR": "10.0.0.1", "GPU_SERVICE_HOST": "10.0.0.1", "GPU_PORT": address}  # fmt: skip
    assert parse([], {f"LEAN_OVMS_{name}": value for name, value in environ.items()}) == Config()


def test_vllms_variables_set_options_and_others_are_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"VLLM_API_KEY": "abc", "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "3"}
    assert parse([], environ) == Config(api_key="abc", max_audio_file_bytes=3 << 20)
    assert capsys.readouterr().err == ""
    assert parse([], {**environ, "API_KEY": "own", "LEAN_OVMS_MAX_AUDIO_FILE_BYTES": "99"}) == Config(
        api_key="own", max_audio_file_bytes=99
    )
    assert parse(["--api-key", "flag"], environ).api_key == "flag"
    assert parse([], {"VLLM_BATCH_INVARIANT": "1"}) == Config(batch_invariant=True)
    services = {"VLLM_SERVICE_HOST": "10.0.0.1", "VLLM_PORT": "tcp://10.0.0.1:80", "VLLM_PORT_80_TCP_PROTO": "tcp"}
    services["GIT_OPT_SET_SERVER_TIMEOUT"] = "5"
    assert parse([], {"VLLM_USE_V1": "1", "VLLM_API_KEY": "", "VLLM_LOGGING_LEVEL": "DEBUG", **services}) == Config()
    assert capsys.readouterr().err == (
        "lean_ovms: without effect in the environment: GIT_OPT_SET_SERVER_TIMEOUT, VLLM_LOGGING_LEVEL, VLLM_USE_V1\n"
    )
    with pytest.raises(StartError, match=r"VLLM_MAX_AUDIO_CLIP_FILESIZE_MB takes a whole number of MB, not '25\.5'"):
        parse([], {"VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "25.5"})


@pytest.mark.parametrize("name", pointers())
def test_a_flag_that_should_point_to_a_model_and_is_empty_stops_the_start(name: str) -> None:
    """As a shell variable that is not set makes it."""
    for argv in ([f"--{name}", ""], [f"--{name}="]):
        with pytest.raises(StartError, match=f"--{name} is empty"):
            parse(argv, {})


def test_every_option_is_in_the_help_with_its_default() -> None:
    text = parser().format_help()
    for row in listed():
        assert (f"--{row.name} " in text) is not row.metadata["secret"]


def test_help_has_the_most_used_options_a_group_or_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for argv in (["--help"], ["-h"], ["--help=all"], ["--help", "limits"], ["--help=--max-images"]):
        with pytest.raises(SystemExit, match="0"):
            parse(argv, {})
        shown[argv[-1]] = set(re.findall(r"^  --(\w+)", capsys.readouterr().out, re.M))
    everything = {row.name for row in listed() if not row.metadata["secret"]}
    assert shown["--help"] == shown["-h"] == {*COMMON, *pointers()}
    assert shown["--help=all"] == everything
    assert shown["limits"] == {row.name for row in listed() if row.metadata["group"] == "limits"}
    assert shown["--help=--max-images"] == {"max_images"}
    with pytest.raises(StartError, match=r"--help=nothing: the topics are all, deployment, .*"):
        parse(["--help=nothing"], {})


def test_help_has_nothing_of_a_feature_that_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ("--max_resolution ", "pull ORG/NAME", "--api_key_file ", "a model of the hub, pulled")
    for argv, there in (
        (["--help=all"], [True, False, True, False]),
        (["--help"], [False, True, True, True]),
        (["--without", "images", "--help=all"], [False, False, True, False]),
        (["--help", "--without=hub,named_keys"], [False, False, False, False]),
    ):
        with pytest.raises(SystemExit, match="0"):
            parse(argv, {})
        out = capsys.readouterr().out
        assert [part in out for part in parts] == there
    with pytest.raises(StartError, match="--help=max_resolution: the topics are all, "):
        parse(["--without=images", "--help=max_resolution"], {})
    with pytest.raises(StartError, match=r"--help=files: the topics are (?!.*files, )"):
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


def test_a_wrong_flag_ends_with_status_2_and_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "lean_ovms", "--nope"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["lean_ovms: unrecognized arguments: --nope (--help lists the options)"]


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
    assert capsys.readouterr().err == "lean_ovms: --without chat: every server has this feature\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not valid JSON: .*char 1"), ("[1]", "is not a JSON object")],
)
def test_an_option_that_is_an_object_is_checked_at_once(text: str, message: str) -> None:
    for row in listed():
        if row.metadata["json_object"]:
            with pytest.raises(StartError, match=f"--{row.name} {message}"):
                parse([f"--{row.name}", text], {})


@pytest.mark.parametrize("argv", [["--help=all"], ["help"], ["version"]])
def test_output_that_nobody_reads_is_no_traceback(argv: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        command = [sys.executable, "-m", "lean_ovms", *argv]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
