"""LoRA adapters as models of their own, on the real engine: answers of direct calls, and adapters that clients load."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from lean_ovms.features.lora import modules
from lean_ovms.features.lora.child.reading import read
from tests.e2e.conftest import ANY_MODEL, EXACT, local_server, until
from tests.makers.make_lora import LORA_ALPHA, RANK, in_pairs, make, write_gguf

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: Any) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("lora")
    model = Path(ANY_MODEL["model_path"])
    return {name: make(root / name, seed, model=model) for seed, name in enumerate(("a", "b"), 1)}


@pytest.fixture(scope="module")
def direct(adapters: dict[str, Path]) -> Any:
    """Returns the text of a direct call with an adapter and its alpha."""

    @functools.cache
    def generate(name: str, alpha: float) -> str:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = 64
        properties = json.loads(EXACT)
        if name:
            adapter = genai.Adapter(str(adapters[name] / "adapter_model.safetensors"))
            mode = genai.AdapterConfig.Mode.MODE_STATIC
            properties["adapters"] = genai.AdapterConfig(adapter, alpha, mode)
        pipe = genai.ContinuousBatchingPipeline(ANY_MODEL["model_path"], scheduler, "CPU", properties)
        config = genai.GenerationConfig()
        config.max_new_tokens, config.stop_token_ids = 24, pipe.get_config().stop_token_ids
        ids = pipe.get_tokenizer().encode(PROMPT).input_ids
        handle = pipe.add_request(1, ids, config)
        while pipe.has_non_finished_requests():
            pipe.step()
        return str(pipe.get_tokenizer().decode([i for output in handle.read_all() for i in output.generated_ids]))

    return generate


async def text(client: openai.AsyncOpenAI, model: str) -> str:
    answer = await client.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0)
    assert answer.model == model
    return answer.choices[0].text


async def test_each_adapter_answers_as_in_a_direct_call_and_clients_load_others(
    adapters: Any, direct: Any, tmp_path: Path
) -> None:
    options: Any = {"lora_modules": f"a={adapters['a']} a-more={adapters['a']},1.5", "plugin_config": EXACT}
    async with local_server(**options, **ANY_MODEL, allow_runtime_lora=True) as local, local.client() as client:

        async def post(path: str, **body: Any) -> str:
            return (await client.post(path, cast_to=str, body=body)).strip('"')

        listed = {model.id: model for model in (await client.models.list()).data}
        assert list(listed) == ["demo", "a", "a-more"]
        assert listed["a"].parent == "demo"  # type: ignore[attr-defined]
        assert (await client.models.retrieve("a")).id == "a"
        names = list(listed)
        found = dict(zip(names, await asyncio.gather(*(text(client, name) for name in names)), strict=True))
        assert local.app.registry.get("a").engine is local.model.engine
        assert found == {
            "demo": direct("", 0),
            "a": direct("a", LORA_ALPHA / RANK),
            "a-more": direct("a", 1.5),
        }
        assert len(set(found.values())) == 3
        assert await text(client, "a") == found["a"]  # with the prefix cache, which has all three
        await local.model.engine.stats()
        os.kill(local.model.engine.pid or 0, signal.SIGKILL)
        await until(lambda: local.model.restarts == 1 and local.model.engine.state == "ready")
        assert await text(client, "a") == found["a"]

        said = await post("/load_lora_adapter", lora_name="x", lora_path=str(adapters["a"]))
        assert said == "Success: LoRA adapter 'x' added successfully."
        assert "x" in [model.id for model in (await client.models.list()).data]
        assert await text(client, "x") == found["a"]
        with pytest.raises(openai.BadRequestError, match="already"):
            await post("/load_lora_adapter", lora_name="x", lora_path=str(adapters["b"]))
        await post("/load_lora_adapter", lora_name="x", lora_path=str(adapters["b"]), load_inplace=True)
        assert await text(client, "x") != found["a"]
        with pytest.raises(openai.BadRequestError, match="The adapter cannot be loaded: there is no adapter at"):
            await post("/load_lora_adapter", lora_name="y", lora_path=str(tmp_path / "nowhere"))
        said = await post("/unload_lora_adapter", lora_name="x")
        assert said == "Success: LoRA adapter 'x' removed successfully."
        with pytest.raises(openai.NotFoundError):
            await text(client, "x")


async def test_a_stateful_pipeline_takes_an_adapter_too(adapters: Any, direct: Any) -> None:
    options: Any = {"lora_modules": f"a={adapters['a']}", "pipeline_type": "LM", "plugin_config": EXACT}
    async with local_server(**options, **ANY_MODEL) as local, local.client() as client:
        assert await text(client, "a") == direct("a", LORA_ALPHA / RANK)


async def test_an_adapter_in_a_gguf_file_answers_as_in_a_directory_and_may_be_applied_to_the_model(
    adapters: Any, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    heads = json.loads((Path(ANY_MODEL["model_path"]) / "config.json").read_text())["num_attention_heads"]
    names = {"self_attn.q_proj": "attn_q", "self_attn.v_proj": "attn_v", "mlp.down_proj": "ffn_down"}
    tensors = {}
    directory = modules.LoraModule("a", str(adapters["a"]))
    for layer, (down, up) in read(modules.dumps(directory), {})[1].items():
        number, place = layer.removeprefix("model.layers.").split(".", 1)
        up = in_pairs(up, heads) if names[place] == "attn_q" else up
        tensors[f"blk.{number}.{names[place]}.weight"] = down, up
    file = write_gguf(tmp_path / "g.gguf", "llama", tensors, LORA_ALPHA)
    both: Any = {"lora_modules": modules.dumps(directory, modules.LoraModule("g", str(file), applied=True))}
    async with local_server(**both, **ANY_MODEL, plugin_config=EXACT) as local, local.client() as client:
        wanted = await text(client, "a")
        assert await text(client, "g") == wanted
        assert await text(client, "demo") == wanted
        await client.post(local.url + "/lora-adapters", cast_to=object, body=[])
        plain = await text(client, "demo")
        assert plain != wanted
        for scales, same in (([{"id": 1, "scale": 1}], True), ([{"id": 0, "scale": -3}], False)):
            answer = await client.completions.create(
                model="demo", prompt=PROMPT, max_tokens=24, temperature=0, extra_body={"lora": scales}
            )
            assert (answer.choices[0].text == wanted) is same
