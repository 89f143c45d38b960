"""Prompts of state space models in chunks (state_space_chunks), compared with openvino's own operation and the rule
itself, both of which compute token by token."""

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("gguf")

import openvino as ov
from openvino import opset13 as ops

from lean_ovms.engine.paged.network import CHUNK
from lean_ovms.features.gguf.child import network as gguf
from lean_ovms.features.hybrid_chunks.child import prompt_chunks, state_space_chunks
from lean_ovms.features.hybrid_chunks.child.exact import exact
from tests.engine.paged.test_zoo import unpacked
from tests.features.hybrid_chunks.child.test_delta_chunks import by_tokens, log_probabilities
from tests.makers import zoo_gguf

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return unpacked("granitemoehybrid", tmp_path_factory.mktemp("granite"))


@pytest.fixture(scope="module")
def wanted(path):
    """Returns the log probabilities by openvino's own operation."""
    return log_probabilities(path, 256, edit=by_tokens)


def test_prompts_in_parts_of_any_size_have_the_same_log_probabilities(path, wanted):
    for size in (1, 17, 200):
        assert log_probabilities(path, size) == pytest.approx(wanted, abs=5e-3), size
    assert log_probabilities(path, 256, others=3) == pytest.approx(wanted, abs=5e-3)


def test_in_bf16_chunks_are_as_near_to_f32_as_tokens(path, wanted):
    by_token = log_probabilities(path, 256, edit=by_tokens, hint="bf16")
    assert np.abs(log_probabilities(path, 256, hint="bf16") - wanted).mean() < 1.1 * np.abs(by_token - wanted).mean()


def test_without_room_for_the_chunks_it_stays_token_by_token(path, monkeypatch, caplog):
    monkeypatch.setattr(prompt_chunks, "free_memory_bytes", lambda: 0)
    assert len(log_probabilities(path, 256)) > 0
    assert "prompts are computed slowly, token by token" in caplog.text


def test_states_of_which_each_number_decays_by_itself_stay_token_by_token(tmp_path):
    """A matrix of all pairs of tokens for each of them would take too much memory (Mamba-1)."""
    model = gguf.read(zoo_gguf.write(tmp_path / "x.gguf", "jamba"))
    inputs = len(model.inputs)
    state_space_chunks.compute_in_chunks(model, lambda: ov.Type.f32)
    assert len(model.inputs) == inputs


@pytest.mark.parametrize(
    ("heads", "groups", "real", "step", "hint"),
    [(8, 1, CHUNK, 0.01, "bf16"), (6, 2, 17, 1.0, "f32"), (8, 1, CHUNK, 8.0, "f32"), (6, 2, 17, 8.0, "bf16")],
)
def test_a_chunk_of_state_spaces_is_exact(heads, groups, real, step, hint):
    """The rule itself is computed in float64, token by token."""
    draw, size, width = np.random.default_rng(7), 16, 4
    steps, decays = abs(draw.normal(size=(CHUNK, heads))) * step, -np.exp(draw.uniform(-1, 2.7, size=heads))
    given, taken = (draw.normal(size=(CHUNK, groups, width)) for _ in range(2))
    values, state = draw.normal(size=(CHUNK, heads, size)), draw.normal(size=(heads, size, width))
    mask = np.arange(CHUNK)[:, None] < real
    arrays = [*(row[None] for row in (steps, given, values, taken)), decays, state[None], mask]
    arrays = [np.ascontiguousarray(array, np.float32) for array in arrays]
    *rows, decay, before, kept = parameters = [ops.parameter(array.shape, np.float32) for array in arrays]
    part = exact(ov.Model([*state_space_chunks.scan(rows, decay, before, kept)], parameters))
    compiled = ov.Core().compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": hint})
    outputs, after = (found[0] for found in compiled(arrays).values())
    owners, wanted = np.arange(heads) // (heads // groups), []
    for at in range(real):
        added = (steps[at, :, None] * values[at])[..., None] * given[at, owners, None]
        state = state * np.exp(decays * steps[at])[:, None, None] + added
        wanted.append((state * taken[at, owners, None]).sum(-1))
    assert outputs[:real] == pytest.approx(np.array(wanted), abs=1e-5 * np.abs(wanted).max())
    assert after == pytest.approx(state, abs=1e-6 * abs(state).max())
