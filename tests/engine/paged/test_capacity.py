"""How memory is divided between blocks of the KV cache and states of sequences."""

import pytest

from lean_ovms.engine.paged.engine import divide, rows_of, slots_for


@pytest.mark.parametrize(
    ("memory", "blocks", "state", "states", "expected"),
    [
        (1000, 0, 0, 8, (100, 0)),
        (1000, 70, 0, 8, (70, 0)),
        (1000, 170, 0, 8, (100, 0)),
        (1000, 0, 20, 8, (84, 8)),  # 8 x 20 for states, 84 x 10 for blocks
        (1000, 70, 20, 8, (70, 8)),
        (1000, 90, 20, 8, (84, 8)),
        (1000, 0, 200, 8, (60, 2)),  # states may take at most half of the memory
        (1000, 0, 700, 8, (30, 1)),  # except for the first
        (1000, 0, 5000, 8, (1, 1)),
    ],
)
def test_blocks_and_states_share_the_memory(memory, blocks, state, states, expected):
    found = divide(memory, blocks=blocks, block_bytes=10, state_bytes=state, states=states)
    assert found == expected
    if state <= memory // 2:
        assert found.blocks * 10 + found.states * state <= memory


def test_each_sequence_that_may_run_has_a_state_and_half_of_one_more():
    assert [rows_of(slots) for slots in (1, 2, 3, 4, 6, 26)] == [1, 1, 2, 2, 4, 17]
    assert [rows_of(slots_for(sequences, caching=False)) for sequences in (1, 2, 8, 64)] == [1, 2, 8, 64]
    assert slots_for(8, caching=True) - slots_for(8, caching=False) == 32
