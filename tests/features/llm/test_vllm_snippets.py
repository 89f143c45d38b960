"""What code written for vLLM does with an LLM besides generate and chat: constraints, beams, the tokenizer, adapters,
tasks."""

from __future__ import annotations

import argparse
import difflib
import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import lean_ovms
from lean_ovms import BeamSearchParams, EngineArgs, LoRARequest, SamplingParams, StructuredOutputsParams
from lean_ovms.cli.keywords import of_keywords
from lean_ovms.config import DEMO_MODEL
from lean_ovms.features.llm.options import in_python
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from tests.fakes import EOS, Script, encode, say
from tests.features.llm.conftest import MakeLLM, text_model

CHAT = [{"role": "user", "content": "Hi"}]


def answers(_: object, sampling: Any) -> Script:
    return say("yes", sequences=sampling.n)


def test_a_script_reads_the_options_of_a_model_from_its_command_line() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.set_defaults(runner="pooling", model="here")
    for name in ("--max-tokens", "--temperature", "--top-p", "--top-k", "--chat-template-path"):
        parser.add_argument(name, default=argparse.SUPPRESS)
    typed = parser.parse_args(["--max-model-len", "99", "--enforce-eager", "--served_model_name=m"])
    given = vars(EngineArgs.from_cli_args(typed))
    assert given == {
        "runner": "pooling", "model": "here", "max_model_len": "99", "enforce_eager": True, "served_model_name": "m",
    }  # fmt: skip
    config = of_keywords(**{**given, "model": str(DEMO_MODEL), "runner": "generate"})
    assert (config.max_model_len, config.model_name) == (99, "m")


def test_the_package_has_vllms_names() -> None:
    assert all(getattr(lean_ovms, name) is not None for name in lean_ovms.__all__)


def test_structured_outputs_have_one_constraint() -> None:
    for given in ({}, {"regex": "a", "choice": ["a"]}):
        with pytest.raises(ValueError, match="StructuredOutputsParams need exactly one of json, regex"):
            StructuredOutputsParams(**given)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="whitespace_pattern has no effect"):
        StructuredOutputsParams({}, whitespace_pattern=" ")


def test_structured_outputs_reach_the_engine(make_llm: MakeLLM) -> None:
    llm = make_llm(partial(text_model, answers))
    choice = StructuredOutputsParams(choice=["yes", "no"])
    llm.generate("a", SamplingParams(structured_outputs=choice))
    llm.generate("a", structured_outputs=choice)
    llm.beam_search("a", BeamSearchParams(2, 8, structured_outputs=choice))
    formats = llm.engine.constraints  # type: ignore[attr-defined]
    assert formats[0]
    assert formats == [formats[0]] * 3


@pytest.mark.parametrize(("width", "sampling"), [(1, (1, 1, 0.0, 1.0)), (3, (3, 3, 1.0, 2.0))])
def test_a_beam_search_asks_for_beams(make_llm: MakeLLM, width: int, sampling: tuple[int, int, float, float]) -> None:
    llm = make_llm(partial(text_model, answers))
    [found] = llm.beam_search("a", BeamSearchParams(width, 5, length_penalty=2.0, ignore_eos=True))
    asked = llm.engine.submitted[0][1]  # type: ignore[attr-defined]
    assert (asked.n, asked.beams, asked.temperature, asked.length_penalty) == sampling
    assert (asked.max_tokens, asked.ignore_eos) == (5, True)
    best = found.sequences[0]
    assert best.tokens[: len(encode("a"))] == encode("a")
    assert best.text.startswith("ayes")
    assert len(best.logprobs) == len(best.tokens) - len(encode("a"))


def test_the_tokenizer_reads_and_writes_as_the_model_does(make_llm: MakeLLM) -> None:
    llm = make_llm(partial(text_model, answers))
    tokenizer = llm.get_tokenizer()
    assert tokenizer.encode("abc", add_special_tokens=False) == encode("abc")
    assert tokenizer("abc")["input_ids"] == tokenizer.encode("abc") == [EOS, *encode("abc")]
    assert tokenizer(["a", "b"], False)["input_ids"] == [encode("a"), encode("b")]
    assert tokenizer.decode(encode("abc")) == "abc"
    assert (tokenizer.decode([]), tokenizer.decode(encode("a")[0])) == ("", "a")
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == llm.chat(CHAT)[0].prompt
    assert tokenizer.apply_chat_template(CHAT, add_generation_prompt=True) == tokenizer.encode(str(text), False)
    with pytest.raises(ValueError, match=r"messages\[0\].role must be one of"):
        tokenizer.apply_chat_template([{"role": "x"}])
    with pytest.raises(ValueError, match="-1 is not a token id"):
        tokenizer.decode([-1])


def test_default_sampling_params_are_what_holds_without_them(make_llm: MakeLLM) -> None:
    llm = make_llm(partial(text_model, answers))
    llm._llm.default_model().directory.generation_config.update(do_sample=True, temperature=0.25, min_p=0.5)
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.min_p) == (0.25, 0.5)
    llm.generate(["a", "a"], [SamplingParams(seed=1), SamplingParams(seed=1, **vars(params))])
    first, second = llm.engine.submitted  # type: ignore[attr-defined]
    assert first[1] == second[1]


def test_an_adapter_is_loaded_once_and_named(make_llm: MakeLLM) -> None:
    llm = make_llm(partial(text_model, answers), enable_lora=True)
    assert llm._llm.config.value("allow_runtime_lora")
    engine = llm.engine  # type: ignore[attr-defined]
    engine.info = replace(engine.info, capabilities=[*engine.info.capabilities, "adapters"])
    adapter = LoRARequest("sql", 1, "/adapters/sql")
    loaded: list[str] = []
    model = llm._llm.default_model()
    add = model.adapters.add

    async def count(name: str, path: str) -> Any:
        loaded.append(path)
        return await add(name, path)

    model.adapters.add = count  # type: ignore[method-assign]
    llm.generate(["a", "b"], lora_request=adapter)
    llm.generate(["a", "b"], lora_request=[None, adapter])
    llm.chat(CHAT, lora_request=adapter)
    llm.generate("a", lora_request=LoRARequest("sql", 1))
    assert loaded == ["/adapters/sql"]
    assert len(set(engine.adapters)) == 2
    with pytest.raises(ValueError, match="there are 2 inputs, but 1 LoRARequest"):
        llm.generate(["a", "b"], lora_request=[adapter])
    with pytest.raises(ValueError, match="The model 'none' does not exist"):
        llm.generate("a", lora_request=LoRARequest("none", 2))


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ({"task": "auto"}, ""),
        ({"task": "generate"}, "text_generation"),
        ({"task": "embed"}, "embeddings"),
        ({"task": "embedding"}, "embeddings"),
        ({"runner": "pooling", "convert": "embed"}, "embeddings"),
        ({"task": "classify"}, "classify"),
        ({"task": "score"}, "rerank"),
        ({"task": "transcription"}, "speech2text"),
        ({"task": "embeddings"}, "embeddings"),
    ],
)
def test_vllms_tasks_have_names_here(options: dict[str, str], task: str) -> None:
    assert of_keywords(**options).task == task


@pytest.mark.parametrize(("name", "path"), [("demo", DEMO_MODEL), ("demo-embed", DEMO_EMBED)])
def test_the_models_of_the_package_have_names(name: str, path: object) -> None:
    assert of_keywords(name).model_dir == path


@pytest.mark.parametrize("method", ["generate", "chat", "beam_search"])
def test_a_misspelt_argument_gets_the_nearest_one(make_llm: MakeLLM, method: str) -> None:
    """This holds for a method's own arguments and for the fields of requests."""
    llm = make_llm(partial(text_model, answers))
    first = {"generate": ("a",), "chat": (CHAT,), "beam_search": ("a", BeamSearchParams(1, 1))}[method]
    for name in inspect.signature(getattr(llm, method)).parameters:
        if name in ("use_tqdm", "lora_request", "sampling_params"):
            wrong = name[:-2] + name[-1]
            assert difflib.SequenceMatcher(None, wrong, name).ratio() > 0.6
            with pytest.raises(TypeError, match=f"{wrong!r}; did you mean {name}"):
                getattr(llm, method)(*first, **{wrong: 1})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--max_num_seqs must be at least 1", "max_num_seqs must be at least 1"),
        ("--source_model and --model_path cannot be used together",
            "source_model and model_path cannot be used together"),
        ("unrecognized arguments: --tem=1 (--help lists the options)",
         "unrecognized arguments: tem=1 (docs/options.md lists the options)"),
        ("x (did you mean --task?)", "x (did you mean task?)"),
        ("it is empty; export it with: optimum-cli export openvino --model M --task T D",
         "it is empty; export it with: optimum-cli export openvino --model M --task T D"),
    ],
)  # fmt: skip
def test_options_are_keywords_in_a_programs_errors(message: str, expected: str) -> None:
    assert in_python(message) == expected
