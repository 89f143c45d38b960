"""KV blocks and the prefix cache, without a network."""

from array import array

from lean_ovms.engine.paged.block_manager import BlockManager

SIZE = 4


def text(*tokens):
    return array("q", tokens)


def fill(manager, tokens, salt=""):
    """Returns blocks with a text, referenced as if a sequence had computed all of it."""
    blocks, parent = [], salt
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        blocks.append(manager.allocate())
        parent = manager.register(blocks[-1], tokens[start : start + SIZE], parent)
    return blocks


def known(manager, tokens, salt="", start=0):
    """Returns how many tokens of a text are found, and releases them."""
    found = manager.match(tokens, start, len(tokens), salt)
    manager.release([block for block, _ in found])
    return len(found) * SIZE


def test_a_text_goes_on_from_a_block_that_it_has_already():
    manager = BlockManager(8, SIZE)
    tokens = text(*range(12))
    fill(manager, tokens)
    ((_, first),) = manager.match(tokens, 0, SIZE, "")
    assert [block for block, _ in manager.match(tokens, SIZE, 12, first)] == [1, 2]


def test_the_longest_released_block_is_overwritten_first_and_the_end_of_a_text_before_its_beginning():
    manager = BlockManager(4, SIZE)
    old, new = text(*range(8)), text(*range(100, 108))
    manager.release(fill(manager, old))
    manager.release(fill(manager, new))
    manager.allocate()
    assert (known(manager, old), known(manager, new)) == (4, 8)
    manager.allocate()
    assert (known(manager, old), known(manager, new)) == (0, 8)


def test_finding_a_text_makes_it_young_again():
    manager = BlockManager(4, SIZE)
    old, new = text(*range(8)), text(*range(100, 108))
    manager.release(fill(manager, old))
    manager.release(fill(manager, new))
    assert known(manager, old) == 8
    manager.allocate()
    assert (known(manager, old), known(manager, new)) == (8, 4)


def test_of_two_blocks_with_one_text_the_first_stays_the_one_that_is_found():
    manager = BlockManager(4, SIZE)
    first, second = fill(manager, text(*range(4))), fill(manager, text(*range(4)))
    assert [block for block, _ in manager.match(text(*range(4)), 0, 4, "")] == first
    manager.release(second)
    assert second[0] in manager._free


def test_a_sequence_can_outlive_the_block_that_is_found_in_place_of_its_own():
    manager = BlockManager(2, SIZE)
    first, second = fill(manager, text(*range(4))), fill(manager, text(*range(4)))
    [(_, serial)] = manager.match(text(*range(4)), 0, 4, "")
    manager.release(first * 2)
    assert manager.has(serial)
    assert manager.allocate() == first[0]
    assert not manager.has(serial)
    assert manager._holders[second[0]] == 1


def test_the_end_of_a_text_whose_beginning_is_gone_is_not_found():
    manager = BlockManager(3, SIZE)
    tokens = text(*range(12))
    blocks = fill(manager, tokens)
    manager.release(blocks[:1])  # the beginning first, which is against the rule
    assert manager.allocate() == blocks[0]
    assert known(manager, tokens) == 0


def test_forgetting_all_leaves_those_who_hold_blocks_alone():
    manager = BlockManager(4, SIZE)
    held = fill(manager, text(*range(8)))
    manager.release(fill(manager, text(*range(50, 58))))
    manager.clear_cache()
    assert manager.available == 2
    assert known(manager, text(*range(8))) == known(manager, text(*range(50, 58))) == 0
    manager.release(held)
    assert manager.available == 4


def test_blocks_behind_a_wrong_one_leave_the_cache_with_it():
    manager = BlockManager(8, SIZE)
    texts = [text(*range(12)), text(*range(4), *range(20, 24)), text(*range(40, 48))]
    for tokens in texts:
        manager.release(fill(manager, tokens))
    [(_, serial)] = manager.match(texts[0], 0, SIZE, "")
    manager.spoil([serial])
    assert [known(manager, tokens) for tokens in texts] == [0, 0, 8]
    assert len(manager.cached()) == 2
