"""Flags of OVMS, vLLM, llama.cpp and Ollama have the same meaning here, or the start says why not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import lean_ovms
from lean_ovms.cli.arguments import parse
from lean_ovms.cli.commands import commands
from lean_ovms.composition import compose, manifests
from lean_ovms.config import DEMO_MODEL, Config, listed
from lean_ovms.errors import StartError
from lean_ovms.features.foreign_flags import command_line
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED

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
"""Command lines from OVMS's documentation, and combinations of options in its tables."""


@pytest.mark.parametrize("line", OVMS_COMMANDS)
def test_ovms_command_lines_are_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = parse(line.split(), {})
    assert config.rest_port == 8000  # with --rest_port, OVMS's --port is the port of gRPC
    assert config.model_path or config.model_list
    assert ("lean_ovms: --port has no effect: " in capsys.readouterr().err) is ("--port" in line.split())


@pytest.mark.parametrize(("program", "word"), command_line.MISSING)
def test_a_command_of_another_program_says_what_to_use_instead(program: str, word: str) -> None:
    assert word not in commands()
    with pytest.raises(StartError, match=f"{program} {word} is not supported: "):
        parse([program, word, "a", "b"], {})


@pytest.mark.parametrize("program", ["vllm", "ollama"])
def test_v_shows_the_version_as_in_vllm_and_ollama(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([program, "-v"], {})
    assert capsys.readouterr().out == f"lean_ovms {lean_ovms.__version__}\n"


@pytest.mark.parametrize("flag", ["--completion-bash", "-cl", "--cache-list", "--list-devices"])
def test_flags_of_llama_server_that_only_print_say_what_prints_it_here(flag: str) -> None:
    with pytest.raises(StartError, match="is not supported: "):
        parse([flag], {})


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
    ("--model a/b --model_path c", "a/b and --model_path cannot be used together"),
    ("serve a/b --model c/d", "unrecognized arguments: c/d"),
    ("--pooler-config x", "--pooling"), ("--logits-processors a.b", "no code"), ("--grpc", "--rest_port"),
    ("--tool-strict-level function", "auto or parameter"),
    ("--kv-cache-memory-bytes many", "must be a number of bytes"), ("--threads many", "must be a whole number of"),
    ("--limit-mm-per-prompt image", "must be {\"image\": N}"),
    ('--structured-outputs-config {"backend":"xgrammar","disable_any_whitespace":true}', '{"backend": NAME}'),
    ("-hft secret", "HF_TOKEN"), ("--config x.yaml", "--options_file"),
])  # fmt: skip
def test_flags_that_are_pointed_to(line: str, words: str) -> None:
    with pytest.raises(StartError) as error:
        parse(line.split(), {})
    assert words in str(error.value)


ODD = (
    *("[]", "5", "null", "{}", '"x"', '{"method": ["x"]}', '{"model": 5}', '{"model": ["x"]}', '{"backend": {}}'),
    *("infk", "infG", "nanM", "--3", "-", "[" * 100_000),
)


def test_what_translates_a_value_says_what_is_allowed_not_how_it_failed() -> None:
    for alias in command_line.known().aliases:
        for text in ODD if ":" in alias.how else ():
            try:
                command_line.read(alias, "--flag", text)
            except StartError as error:
                said = str(error).removesuffix(f"; it is {text!r}")
                assert not re.search(r"attribute|literal|convert|unhashable|should be|cannot", said), (alias, said)


def words_of(flag: str) -> Mapping[str, str]:
    """Returns our values for the values of another server's flag."""
    [alias] = [alias for alias in command_line.known().aliases if flag in alias.names]
    return alias.words


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("--prot", "--port"),
        ("--gpu-memory-utilisation=1", "--gpu_memory_utilization"),
        ("--cache_sise", "--cache_size"),
    ],
)
def test_wrong_flags_are_compared_with_those_of_others_too(wrong: str, meant: str) -> None:
    with pytest.raises(StartError, match=f"did you mean {meant}\\?"):
        parse([wrong], {})


def test_vllms_names_of_parsers_are_those_of_parsers_here() -> None:
    known = registry()
    assert set(words_of("tool_call_parser").values()) <= set(known.tool_names)
    assert set(words_of("reasoning_parser").values()) <= set(known.reasoning_names)
    config = parse(["--tool-call-parser", "glm47", "--reasoning-parser", "glm45"], {})
    assert (config.value("tool_parser"), config.value("reasoning_parser")) == ("glm4_moe", "qwen3")


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
    """All except hf and beam, whose format is described in the model's own files."""
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
    assert (config.value("tool_parser"), config.value("reasoning_parser")) == found


def test_a_foreign_flag_is_no_option_too_and_has_one_meaning() -> None:
    known, names = command_line.known(), {row.name for row in listed()}
    without_effect = [word.partition("=")[0] for line in flag_lines() if " = " not in line for word in line.split()]
    assert set(without_effect) == known.ignored.keys() | known.refused.keys()
    assert not names & set(without_effect)
    found = without_effect + [name for alias in known.aliases for name in alias.names]
    assert sorted(found) == sorted(set(found))
    assert {alias.option for alias in known.aliases + known.variables} <= names


def flag_lines() -> Iterator[str]:
    """Yields the lines with flags in all files that contain some."""
    for path in sorted(Path(lean_ovms.__file__).parent.rglob("flags.txt")):
        yield from (line for line in path.read_text("utf-8").splitlines() if re.match(r" {4}\S", line))


def test_every_file_with_flags_is_named_by_a_manifest() -> None:
    assert {*Path(lean_ovms.__file__).parent.rglob("flags.txt")} == {path for _, path in compose().flags}


SHARING = ",".join(one.name for one in manifests() if one.libraries and not one.essential)
"""The features that share options. An option is gone only if all features that have it are left out."""


@pytest.mark.parametrize("left_out", ["", SHARING, *(one.name for one in manifests() if not one.essential)])
def test_flags_set_options_that_there_are(left_out: str) -> None:
    known, names = command_line.known(left_out), {row.name for row in listed(left_out)}
    assert {alias.option for alias in known.aliases + known.variables} <= names
    assert {alias.further for alias in known.aliases} - {""} <= names


def test_flags_of_a_feature_go_with_it() -> None:
    assert parse(["--spec-model", "d"], {}) == Config(draft_model_path="d")
    with pytest.raises(StartError, match="unrecognized arguments: --spec"):
        parse(["--spec-model", "d", "--without", "drafting"], {})
    assert parse(["--task", "embed"], {}) == Config(task="embeddings")
    with pytest.raises(StartError, match="--task must be one of"):
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
        ("-m m.gguf --embd-normalize -1", {"model_path": "m.gguf", "normalize": "false"}),
        ("/m --generation-config vllm", {"model_path": "/m", "generation_config_path": "none"}),
        ("/m --generation-config /g/", {"model_path": "/m", "generation_config_path": "/g/generation_config.json"}),
        ('/m --allowed-origins ["https://a","https://b"]', {"model_path": "/m", "allowed_origins": "https://a,https://b"}),
        ("/m --limit-mm-per-prompt image=4 --uds /s", {"model_path": "/m", "max_images": 4, "unix_socket": "/s"}),
        ("-m /m/x.gguf -c 4096 -np 4 -v -a chat --metrics", {"model_path": "/m/x.gguf", "max_model_len": 4096,
            "max_num_seqs": 4, "log_level": "DEBUG", "model_name": "chat", "metrics_enable": True}),
        ("-hf org/m-GGUF -hff m.gguf -t 2", {"source_model": "org/m-GGUF", "gguf_filename": "m.gguf",
            "plugin_config": '{"INFERENCE_NUM_THREADS": 2}'}),
        ("/m -t -1", {"model_path": "/m", "plugin_config": '{"INFERENCE_NUM_THREADS": 0}'}),
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
            "model_path": "/m", "value_cache_precision": "u8", "web_page": False, "slot_save_path": "/s",
            "mmproj": "none"}),
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
        ("-m /m --reasoning-budget 64 --ignore-eos --xtc-probability 0.5 --mirostat 2 --mirostat-ent 4 "
            "--samplers xtc;temp --typical 0.9 --dynatemp-exp 2", {"model_path": "/m", "override_generation_config":
            '{"thinking_token_budget": 64, "ignore_eos": true, "xtc_probability": 0.5, "mirostat": 2, '
            '"mirostat_tau": 4, "samplers": ["xtc", "temperature"], "typical_p": 0.9, "dynatemp_exponent": 2}'}),
        ("-m /m --sampling-seq kt --repeat-last-n 64", {"model_path": "/m", "override_generation_config":
            '{"samplers": ["top_k", "temperature"], "repeat_last_n": 64}'}),
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


def test_vllms_variables_set_options_and_others_are_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"VLLM_API_KEY": "abc", "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "3"}
    assert parse([], environ) == Config(api_key="abc", max_audio_file_bytes=3 << 20)
    assert capsys.readouterr().err == ""
    assert parse([], {**environ, "API_KEY": "own", "LEAN_OVMS_MAX_AUDIO_FILE_BYTES": "99"}) == Config(
        api_key="own", max_audio_file_bytes=99
    )
    assert parse(["--api-key", "flag"], environ).api_key == "flag"
    assert parse([], {"VLLM_BATCH_INVARIANT": "1"}) == Config(batch_invariant=True)
    for text, allowed in (("True", True), ("1", True), ("0", False), ("", False)):
        assert parse([], {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": text}) == Config(allow_runtime_lora=allowed)
    assert parse([], {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"}) == Config(keep_alive_timeout_s=5)
    services = {"VLLM_SERVICE_HOST": "10.0.0.1", "VLLM_PORT": "tcp://10.0.0.1:80", "VLLM_PORT_80_TCP_PROTO": "tcp"}
    services["GIT_OPT_SET_SERVER_TIMEOUT"] = "5"
    assert parse([], {"VLLM_USE_V1": "1", "VLLM_API_KEY": "", **services}) == Config()
    assert capsys.readouterr().err == (
        "lean_ovms: these environment variables have no effect: GIT_OPT_SET_SERVER_TIMEOUT, VLLM_USE_V1\n"
    )
    assert parse([], {"VLLM_LOGGING_LEVEL": "DEBUG"}) == Config(log_level="DEBUG")
    with pytest.raises(
        StartError, match=r"VLLM_MAX_AUDIO_CLIP_FILESIZE_MB must be a whole number of MB; it is '25\.5'"
    ):
        parse([], {"VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "25.5"})


def test_llama_cpps_variables_set_options_and_others_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A compose file whose API key was not read would serve without one."""
    environ = {"LLAMA_API_KEY": "abc", "LLAMA_ARG_HOST": "::", "LLAMA_ARG_PORT": "8080", "LLAMA_ARG_MODEL": "m.gguf"}
    environ |= {"LLAMA_ARG_CTX_SIZE": "8192", "LLAMA_ARG_N_PARALLEL": "4"}
    expected = {"rest_bind_address": "::", "rest_port": 8080, "max_model_len": 8192, "max_num_seqs": 4}
    assert parse([], environ) == Config(api_key="abc", model_path="m.gguf", **expected)  # type: ignore[arg-type]
    assert parse(["--port", "1"], environ).rest_port == 1
    assert parse([], {"LLAMA_ARG_HF_REPO": "org/m:Q8_0"}) == parse(["-hf", "org/m:Q8_0"], {})
    assert capsys.readouterr().err == ""
    parse([], {"LLAMA_ARG_N_GPU_LAYERS": "99", "OLLAMA_KEEP_ALIVE": "5m", "LLAMA_ARG_PORT": "tcp://10.0.0.1:80"})
    assert capsys.readouterr().err == (
        "lean_ovms: these environment variables have no effect: LLAMA_ARG_N_GPU_LAYERS, OLLAMA_KEEP_ALIVE\n"
    )


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        ({"THREADS": "4", "CACHE_TYPE_K": "q8_0", "MMPROJ": "p.gguf"}, "-t 4 -ctk q8_0 --mmproj p.gguf"),
        ({"TEMPERATURE": "0.5", "TOP_P": "0.9"}, "--temp 0.5 --top-p 0.9"),
        ({"ALIAS": "a,b", "N_PREDICT": "7", "THINK": "none"}, "-a a,b -n 7 --reasoning-format none"),
        ({"UI": "0", "ENDPOINT_METRICS": "1"}, "--no-ui --metrics"),
        ({"NO_UI": "true", "CORS_CREDENTIALS": "off"}, "--no-ui --no-cors-credentials"),
        ({"NO_UI": "0", "CONTEXT_SHIFT": "", "ROPE_SCALE": "2", "CHAT_TEMPLATE": "chatml"},
         "--rope-scale 2 --chat-template chatml"),
    ],
)  # fmt: skip
def test_a_variable_of_llama_cpp_is_its_flag(variables: dict[str, str], flags: str) -> None:
    assert parse([], {f"LLAMA_ARG_{name}": value for name, value in variables.items()}) == parse(flags.split(), {})


def test_a_flag_takes_precedence_over_a_variable_and_keeps_its_other_members() -> None:
    environ = {"LLAMA_ARG_TEMPERATURE": "0.5", "LLAMA_ARG_TOP_P": "0.9", "LLAMA_ARG_THREADS": "4"}
    assert parse(["--temp", "0.1", "-t", "2"], environ) == parse(["--temp", "0.1", "--top-p", "0.9", "-t", "2"], {})
    with pytest.raises(StartError, match="LLAMA_ARG_THREADS must be a whole number of threads; it is 'four'"):
        parse([], {"LLAMA_ARG_THREADS": "four"})


def test_a_server_may_do_without_flags_of_others() -> None:
    """Its own flags, values and objects keep their meaning."""
    argv = ["serve", "org/m", "--rest-port", "1", "--plugin_config", '{"A": 1}', "--without=foreign_flags"]
    expected = {"source_model": "org/m", "rest_port": 1, "plugin_config": '{"A": 1}', "without": "foreign_flags"}
    assert parse(argv, {"VLLM_API_KEY": "k"}) == Config(**expected)
    for flags in (["--port", "1"], ["-m", "m"], ["--rest_workers", "2"]):
        with pytest.raises(StartError, match="unrecognized arguments: "):
            parse([*flags, "--without=foreign_flags"], {})
