"""The header of a GGUF file is not trusted, and a file gives the same answers as OpenVINO files with the same
weights."""

import os
import random
import struct

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.generation.worker_thread import in_thread
from lean_ovms.engine.loading import vocabulary
from lean_ovms.engine.worker.text_model import choose, load_text_model, other_pipelines
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.base import MOST_TOKENS
from lean_ovms.features.gguf import header as gguf
from lean_ovms.features.gguf.model_file import GgufFile, header_of
from lean_ovms.features.structured_output.limits import GrammarBounds
from lean_ovms.repository import model_config, model_dir, model_file
from lean_ovms.types import SamplingParams
from tests.engine.real import EXACT, QUESTIONS, chat
from tests.engine.rig import Rig
from tests.repository.test_odd_files import MAKERS

GREEDY = SamplingParams(temperature=0.0)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def strings(*values):
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values))


def numbers(code, kind, *values):
    return struct.pack(f"<IQ{len(values)}{code}", kind, len(values), *values)


ENTRIES = {
    "general.architecture": (8, text("llama")),
    "llama.block_count": (4, struct.pack("<I", 2)),
    "llama.embedding_length": (4, struct.pack("<I", 64)),
    "llama.attention.head_count": (4, struct.pack("<I", 4)),
    "llama.attention.head_count_kv": (4, struct.pack("<I", 2)),
    "llama.context_length": (4, struct.pack("<I", 300)),
    "llama.pooling_type": (4, struct.pack("<I", 0)),
    "tokenizer.ggml.model": (8, text("gpt2")),
    "tokenizer.ggml.tokens": (9, strings("a", "b", "<think>")),
    "tokenizer.ggml.token_type": (9, numbers("i", 5, 1, 3, 4)),
    "tokenizer.ggml.eos_token_id": (4, struct.pack("<I", 1)),
}
EMBEDDING = ("token_embd.weight", [64, 3], 1, 0)


def file(changes=None, tensors=(EMBEDDING,), version=3, data=64 * 3 * 2):
    """Returns a GGUF file as bytes. `changes` replaces entries by key; None leaves one out."""
    entries = {key: value for key, value in {**ENTRIES, **(changes or {})}.items() if value is not None}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    head += b"".join(entry(key, *value) for key, value in entries.items())
    for name, shape, kind, offset in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return head + bytes(-len(head) % 32) + bytes(data)


TWICE = file({"x": (7, b"\1"), "y": (7, b"\1")}).replace(text("y"), text("x"))
"""A file that has a value twice."""
CLASSES = ("cls.output.weight", [64, 1], 1, 0)


def encoder(*tensors, **changes):
    """Returns a file of the architecture bert with these tensors as bytes."""
    entries = {key.replace("llama", "bert"): value for key, value in ENTRIES.items()}
    named = {**dict.fromkeys(ENTRIES), **entries, "general.architecture": (8, text("bert")), **changes}
    return file(named, (EMBEDDING, *tensors), data=1 << 14)


def modernbert(*tensors):
    return encoder(*tensors, **{"general.architecture": (8, text("modern-bert"))})


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "x.gguf"
        path.write_bytes(data)
        return gguf.read(path)

    return read


def test_the_header_has_what_a_config_has(read, tmp_path):
    header = read(file())
    assert header.user_defined == {2}
    assert (header.vocab_size, header.logits_width) == (3, 3)
    config = model_config.read(tmp_path / "x.gguf")
    assert model_config.context_length(config) == 300
    assert model_config.kv_bytes_per_token(config, "f32", "f32") == 2 * 2 * 16 * 8


@pytest.mark.parametrize("size", [0, 3, 4, 10, 23, 24, 30, 100, 400])
def test_a_file_that_ends_in_its_header_is_refused(read, size):
    with pytest.raises(StartError, match=r"x\.gguf"):
        read(file()[:size])


@pytest.mark.parametrize(("number", "name"), [(15, "Q4_K_M"), (32, "BF16"), (9999, ""), (None, ""), ("list", "")])
def test_a_file_says_how_many_weights_it_has_and_of_what_type(read, tmp_path, number, name):
    value = (9, struct.pack("<IQI", 4, 1, 15)) if number == "list" else (4, struct.pack("<I", number or 0))
    entries = {} if number is None else {"general.file_type": value}
    wide = ("output.weight", [64, 8], 8, 64 * 3 * 2)
    assert read(file(entries, tensors=(EMBEDDING, wide), data=64 * 3 * 2 + 8 * 64 // 32 * 34)).logits_width == 8
    assert GgufFile(tmp_path / "x.gguf").weights() == model_file.FileWeights(parameters=64 * 11, precision=name)


def test_a_header_is_read_in_pieces(read, monkeypatch, tmp_path):
    whole = read(file())
    for size in (1, 7, 64):
        monkeypatch.setattr(gguf, "HEADER_BYTES", size)
        monkeypatch.setattr(gguf, "BEGINNING_BYTES", size)
        header = gguf.read(tmp_path / "x.gguf")
        assert (header.tensors, header.config()) == (whole.tensors, whole.config())
        assert gguf.beginning(tmp_path / "x.gguf")["llama.context_length"] == 300


def test_a_file_that_is_cut_while_its_header_is_read_is_refused(read, monkeypatch, tmp_path):
    read(file({"general.description": (8, text("long" * 10_000))}))
    path, number = tmp_path / "x.gguf", gguf.Cursor.number

    def cut(cursor, code):
        os.truncate(path, 40)
        return number(cursor, code)

    monkeypatch.setattr(gguf, "HEADER_BYTES", 64)
    monkeypatch.setattr(gguf.Cursor, "number", cut)
    with pytest.raises(StartError, match="it ends within its header"):
        gguf.read(path)


@pytest.mark.parametrize("last", [b"z\0", b"z"], ids=["zero", "none"])
def test_each_string_of_an_array_is_decoded_by_itself(read, last):
    values = [b"", b"\xc3\xa9", b"\xe4\xb8", b"\xf0\x9f", b"\xff\xfe", b"", last]
    array = struct.pack("<IQ", 8, len(values)) + b"".join(struct.pack("<Q", len(each)) + each for each in values)
    header = read(file({"general.languages": (9, array)}))
    texts = [each.decode("utf-8", "replace") for each in values]
    assert header.strings("general.languages") == texts
    assert [header.metadata["general.languages"].text(place) for place in range(len(texts))] == texts


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1])
def test_a_string_is_not_longer_than_the_file(read, length):
    array = struct.pack("<IQ", 8, 1) + struct.pack("<Q", length)
    with pytest.raises(StartError, match="it ends within its header"):
        read(file({"tokenizer.ggml.tokens": (9, array)}))


def test_a_file_with_holes_is_not_read_into_memory(tmp_path):
    path, text_of = tmp_path / "x.gguf", struct.pack("<Q", 1 << 39)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("x") + struct.pack("<I", 8) + text_of)
    os.truncate(path, 1 << 40)
    with pytest.raises(StartError, match="it claims a header of more than 268435456 bytes"):
        gguf.read(path)
    assert GgufFile(path).task() == ""


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_regular_file_is_not_waited_for(tmp_path, kind):
    MAKERS[kind](tmp_path / "x.gguf")
    with pytest.raises(StartError, match="cannot be read"):
        gguf.read(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (file()[:-1], r"token_embd.weight.*pull it with --source_model, --gguf_filename"),
        (b"GGML" + file()[4:], "begin"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS; run git lfs pull"),
        (file(version=1), "version 1"),
        (file(version=99), "version 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 62), "claims"),
        (file({"x": (9, struct.pack("<IQ", 4, 1 << 62))}), "ends"),
        (file({"x": (9, struct.pack("<IQ", 8, 1 << 62))}), "claims an array of"),
        (file({"x": (9, struct.pack("<IQ", 8, 1 << 20))}), "ends"),
        (file({"x": (9, struct.pack("<IQ", 9, 1))}), "kind 9"),
        (file({"x": (77, b"")}), "kind 77"),
        (file({"x": (8, struct.pack("<Q", (1 << 64) - 1))}), "ends"),
        (file({"general.alignment": (4, struct.pack("<I", 0))}), "alignment"),
        (file(tensors=[("t", [1] * 5, 0, 0)]), "5 dimensions"),
        (file(tensors=[("t", [1 << 40, 1 << 40], 0, 0)]), "larger than any file"),
        (file(tensors=[EMBEDDING, EMBEDDING]), "two values of one name"),
        (TWICE, "two values of one name"),
        (file(tensors=[EMBEDDING, ("output.weight", [48, 3], 8, 0)]), "rows of 48 elements in blocks of 32"),
        (file({"llama.block_count": (4, struct.pack("<I", 513))}), "claims 513 layers"),
        (file(tensors=[("token_embd.weight", [64, 3], 1, 1 << 60)]), "ends within the tensor"),
        (file(tensors=[("output.weight", [64, 3], 1, 0)]), "it has no token_embd"),
        (file({"general.architecture": (8, text("rwkv7"))}), "rwkv7 are not supported"),
        (file({"general.architecture": None}), "architecture none are not supported"),
        (file({"split.count": (2, struct.pack("<H", 3))}), "one part of several; name the first one"),
        (file(tensors=[EMBEDDING, ("output.weight", [64, 3], 19, 0)]), "output.weight has the type 19"),
        (file({"llama.block_count": None}), "block_count is missing"),
        *((file({"llama.attention.head_count_kv": (4, struct.pack("<I", count))}), "heads is not a multiple of llama")
          for count in (0, 8)),
        (
            file({"tokenizer.ggml.model": (8, text("rwkv"))}),
            "kind rwkv, which is not supported, only bert or gemma4 or gpt2 or llama or t5",
        ),
        (encoder(CLASSES), "only one of the two layers of its classifier"),
        (encoder(CLASSES, ("cls.weight", [64, 64], 1, 0)), "its classifier does not have the form of RoBERTa's"),
        (modernbert(CLASSES, ("cls.weight", [64, 64], 1, 0)), "the norm of its classifier is missing"),
        (modernbert(("cls.weight", [64, 64], 1, 0)), "only one of the two layers of its classifier"),
        (file({"tokenizer.ggml.tokens": None}), "vocabulary"),
        (file({"tokenizer.ggml.tokens": (9, numbers("i", 5, 1, 2, 3))}), "vocabulary"),
        (file({"tokenizer.ggml.token_type": (9, numbers("i", 5, 1))}), "vocabulary"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "numbers are big-endian"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_explained_in_a_sentence(read, data, word):
    with pytest.raises(StartError, match=word):
        read(data)


@pytest.mark.parametrize(("padding", "known"), [(2, 2), (3, 0), ((1 << 32) - 1, 0)])
def test_a_padding_token_that_the_vocabulary_lacks_is_not_used(read, padding, known):
    header = read(file({"tokenizer.ggml.padding_token_id": (4, struct.pack("<I", padding))}))
    assert (header.padding, header.config()["pad_token_id"]) == (known, known)


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_special_tokens_that_the_vocabulary_lacks_are_not_used(read, name):
    for kind, code, lost in ((5, "i", -1), (4, "I", 3), (4, "I", (1 << 32) - 1)):
        header = read(file({f"tokenizer.ggml.{name}_token_id": (kind, struct.pack("<" + code, lost))}))
        assert (header.lost_tokens, header.token(name)) == ([name], "")
        assert f"whose {name} token is not in" in gguf.only_paged(header)
    assert read(file({f"tokenizer.ggml.{name}_token_id": (4, struct.pack("<I", 2))})).lost_tokens == []


def test_the_task_of_a_big_endian_file_is_unknown(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 1, 1))
    assert GgufFile(tmp_path / "x.gguf").task() == ""


def test_heads_are_compared_in_linear_time(read):
    each = numbers("I", 4, *[4] * 300_000)
    assert read(file({f"llama.attention.head_count{end}": (9, each) for end in ("", "_kv")})).number_of(
        "attention.head_count", 1
    )


OUTPUT = ("output.weight", [64, 3], 1, 0)


def part(number, entries, tensor, count=2, tensors=2):
    """Returns a part of a split file as bytes."""
    places = {"split.no": ("H", 2, number), "split.count": ("H", 2, count), "split.tensors.count": ("i", 5, tensors)}
    split = {key: (kind, struct.pack("<" + code, value)) for key, (code, kind, value) in places.items()}
    return file({**dict.fromkeys(ENTRIES), **entries, **split}, [tensor])


@pytest.mark.parametrize(
    ("second", "word"),
    [
        (part(1, {}, OUTPUT), ""),
        (None, "x-00002-of-00002.gguf cannot be read: No such file"),
        (
            part(1, {}, OUTPUT)[:-1],
            "x-00002-of-00002.gguf is not a complete GGUF file: it ends within the tensor output",
        ),
        (part(0, {}, OUTPUT), "x-00002-of-00002.gguf is not a complete GGUF file: it is not part 2 of 2"),
        (part(1, {}, OUTPUT, count=3), "x-00002-of-00002.gguf is not a complete GGUF file: it is not part 2 of 2"),
        (file(), "x-00002-of-00002.gguf is not a complete GGUF file: it is not part 2 of 2"),
        (part(1, {}, EMBEDDING), "x-00002-of-00002.gguf is not a complete GGUF file: it belongs to another file"),
    ],
)
def test_all_parts_of_a_split_file_are_read(tmp_path, second, word):
    path = tmp_path / "x-00001-of-00002.gguf"
    path.write_bytes(part(0, ENTRIES, EMBEDDING))
    if second is not None:
        (tmp_path / "x-00002-of-00002.gguf").write_bytes(second)
    if word:
        with pytest.raises(StartError, match=word):
            gguf.read(path)
        return
    assert set(gguf.read(path).tensors) == {"token_embd.weight", "output.weight"}
    assert model_config.weights_bytes(path) == len(path.read_bytes()) + len(second)
    config = Config(model_path=str(path), pipeline_type="LM_CB")
    with pytest.raises(StartError, match=r"openvino-genai does not load split GGUF files; .*--pipeline_type PAGED"):
        choose(config, ("CPU",))
    with pytest.raises(
        StartError, match=r"x-00002-of-00002\.gguf cannot be served: it is one part of several; name the first"
    ):
        gguf.read(tmp_path / "x-00002-of-00002.gguf")
    path.write_bytes(part(0, ENTRIES, EMBEDDING, tensors=3))
    with pytest.raises(StartError, match="its parts have 2 tensors"):
        gguf.read(path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((0, "text_generation"), (1, "embeddings"), (3, "embeddings"), (4, "rerank")),
        ((1 << 32) - 1, "text_generation"),  # llama.cpp writes -1 for none
    ],
)
def test_the_task_follows_from_the_pooling(tmp_path, kind, name):
    path = tmp_path / "x.gguf"
    path.write_bytes(file({"llama.pooling_type": (4, struct.pack("<I", kind))}))
    assert model_dir.detect_task(path) == name
    path.write_bytes(path.read_bytes()[:40])
    assert model_dir.detect_task(path) == ""
    path.write_bytes(file({"general.architecture": (8, text("nomic-bert-moe"))}))
    assert model_dir.detect_task(path) == "embeddings"


@pytest.mark.parametrize("name", ["general.architecture", "llama.pooling_type"])
def test_a_list_where_a_name_or_a_number_belongs_is_no_error_of_the_server(tmp_path, name):
    path = tmp_path / "x.gguf"
    path.write_bytes(file({name: (9, numbers("I", 4, 1, 2))}))
    assert model_dir.detect_task(path) == "text_generation"


@pytest.mark.parametrize(("classes", "name"), [(1, "rerank"), (3, "classify")])
def test_a_classifier_scores_or_names_classes(tmp_path, classes, name):
    path = tmp_path / "x.gguf"
    layers = [("cls.weight", [64, 64], 1, 0), ("cls.output.weight", [64, classes], 1, 0)]
    path.write_bytes(encoder(*layers, ("token_types.weight", [64, 1], 1, 0)))
    assert model_dir.detect_task(path) == name
    labels = {"bert.classifier.output_labels": (9, strings("a", "b", "c"))}
    path.write_bytes(encoder(*layers, ("token_types.weight", [64, 1], 1, 0), **labels))
    assert [*header_of(path).config()["id2label"].values()] == ["a", "b", "c"][:classes]
    if classes == 1:  # one row of a classifier has one dimension in files that were quantized
        shapes = {"cls.weight": [64, 64], "cls.output.weight": [64], "token_types.weight": [64]}
        path.write_bytes(encoder(*((name, shape, 1, 0) for name, shape in shapes.items())))
        assert (model_dir.detect_task(path), header_of(path).classes) == ("rerank", 1)


def test_a_file_that_is_cut_is_noticed_before_an_engine_loads_it(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(file()[:-1])
    with pytest.raises(StartError, match="is not a complete GGUF file: it ends within the tensor"):
        model_dir.read(Config(model_path=str(path)))


def test_a_header_is_read_once_while_a_model_is_loaded(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(file())
    with model_file.reading_once():
        assert in_thread("compile", lambda: header_of(path)).result() is header_of(path)
    assert header_of(path) is not header_of(path)


@pytest.mark.parametrize(
    ("architecture", "pipeline", "outcome"),
    [
        ("llama", "AUTO", "PAGED"),
        ("llama", "LM_CB", "LM_CB"),
        ("gemma", "AUTO", "PAGED"),
        ("gemma", "LM_CB", "of llama with the tokenizer gpt2, .*, not of gemma with .*--pipeline_type PAGED"),
        (
            "rwkv7",
            "AUTO",
            "GGUF files of the architecture rwkv7 are not supported, only those of .*, phi3, .*; serve the original "
            "model",
        ),
    ],
)
def test_the_pipeline_follows_from_the_architecture(tmp_path, architecture, pipeline, outcome):
    path = tmp_path / "x.gguf"
    changes = {key.replace("llama.", f"{architecture}."): value for key, value in ENTRIES.items() if "llama." in key}
    path.write_bytes(file({**changes, "general.architecture": (8, text(architecture))}))
    config = Config(model_path=str(path), pipeline_type=pipeline)
    if architecture == "gemma":
        with pytest.raises(StartError, match="cannot serve this model: it has no names"):
            other_pipelines(config, ("CPU",)).without_paged("it has no names", miscounts=False)
    if outcome.isupper():
        assert choose(config, ("CPU",)).pipeline == outcome
    else:
        with pytest.raises(StartError, match=outcome):
            choose(config, ("CPU",))


def test_no_bytes_do_any_harm():
    dice = random.Random(1)
    whole = file()
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 6)):
            data[dice.randrange(len(data) - 384)] = dice.randrange(256)
        try:
            header = gguf.parse(bytes(data))
        except gguf.Malformed:
            continue
        assert isinstance(header.config(), dict)


# --- on the engine


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    pytest.importorskip("gguf")
    from tests.makers.make_gguf import make

    return make(tmp_path_factory.mktemp("gguf") / "demo.gguf")


@pytest.fixture(scope="module", params=["PAGED", "LM_CB"])
def pipeline(path, request):
    return load_text_model(
        Config(model_path=str(path), **EXACT, enable_prefix_caching=False, pipeline_type=request.param)
    )


@pytest.mark.model
def test_it_answers_what_the_models_own_files_answer(pipeline, engine):
    """<think> and <tool_call> are visible too, which GenAI's decode hides for a GGUF file."""
    for question in QUESTIONS[:3]:
        prompt = chat(question)
        mine, theirs = (Rig(pipeline=p).ask(prompt, max_tokens=30) for p in (pipeline, engine))
        assert mine.reasons == theirs.reasons
        assert pipeline.decode(mine.tokens[0], True) == engine.decode(theirs.tokens[0], True)
    ours, theirs = pipeline.info, engine.info
    assert ours.chat_template == theirs.chat_template
    assert (ours.context_length, ours.vocab_size, ours.eos_token) == (8192, 2048, theirs.eos_token)
    assert 2 in ours.eos_token_ids
    assert pipeline.vocabulary.exact
    assert pipeline.vocabulary.pieces == engine.vocabulary.pieces
    assert pipeline.vocabulary.special == engine.vocabulary.special
    lines = "".join(f"{n} ways to count, and none too many.\n" for n in range(3000))
    ids = pipeline.encode(lines, True)
    assert len(ids) > 3 * MOST_TOKENS
    assert ids == engine.encode(lines, True)


@pytest.mark.model
@pytest.mark.parametrize("pipeline", ["LM_CB"], indirect=True)
def test_a_grammar_works_with_it(pipeline):
    import json

    tag = json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": "[0-9]{3} Grüße"}})
    pipeline.grammars.compiler.compile(tag)
    seconds = pipeline.grammars.checker.check(tag, GrammarBounds()).seconds
    pipeline.grammars.checker.stop()
    assert seconds >= 0
    from tests.features.genai_pipelines.test_pipeline_contract import finish, work

    prompt = pipeline.encode(chat("Count from 1 to 9."), False)
    inner = pipeline.pipeline
    (ids,) = finish(inner, inner.add(work(prompt, constraint=tag, max_tokens=30, sampling=GREEDY)))
    answer = pipeline.decode(ids, True)
    assert answer[:3].isdigit()
    assert answer[3:] == " Grüße"


def test_the_vocabulary_shows_user_defined_tokens(monkeypatch, tmp_path):
    words = vocabulary.Vocabulary(pieces=[b"a", b"<think>", b"<eos>"], special=frozenset({1, 2}))
    monkeypatch.setattr(vocabulary, "from_tokens", lambda _: words)
    path = tmp_path / "x.gguf"
    path.write_bytes(file({"tokenizer.ggml.token_type": (9, numbers("i", 5, 1, 4, 3))}))
    assert vocabulary.from_file(GgufFile(path), None).special == {2}
