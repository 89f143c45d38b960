"""A tiny Qwen3-Omni answers text, images and audio like openvino_genai's own pipeline."""

from dataclasses import asdict

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.protocol import Cancel, SpokenTokens, Submit
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.settings import resolve_stateful
from lean_ovms.types import AUDIO_TAG, SamplingParams
from tests.engine.real import assert_empty, chat
from tests.engine.rig import Rig
from tests.engine.vlm import tags, unpacked_omni_model
from tests.pictures import COLOURS
from tests.recordings import pcm, tone

pytestmark = pytest.mark.model
CHUNK_FRAMES, FRAMES_PER_TOKEN = 24, 25
SIZE = (48, 64)
LOW, HIGH = (pcm(tone(1.0, hertz=hertz)) for hertz in (440.0, 3000.0))
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return unpacked_omni_model(tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def pipeline(folder):
    from lean_ovms.features.genai_pipelines.child.factory import load

    return load(Config(model_path=str(folder), engine_watchdog_s=1200), "OMNI", ("CPU",))


@pytest.fixture(scope="module")
def direct(folder):
    """Returns a function that calls openvino_genai's pipeline: (prompt, images, audio) -> text and prompt tokens."""
    import openvino as ov
    import openvino_genai as genai

    properties = resolve_stateful(Config(model_path=str(folder))).properties

    def generate(prompt, colours=(), audio=()):
        # A new pipeline each time, because it remembers audio.
        pipe = genai.OmniPipeline(str(folder), "CPU", **properties)
        config, speech = genai.GenerationConfig(), genai.OmniTalkerSpeechConfig()
        config.max_new_tokens, config.apply_chat_template, config.ignore_eos = TOKENS, False, True
        config.set_eos_token_id(2)
        speech.return_audio = False
        pictures = [np.full((*SIZE, 3), COLOURS[colour], np.uint8) for colour in colours]
        signals = [np.frombuffer(samples, "<i2").astype(np.float32) / 32768 for samples in audio]
        result = pipe.generate(
            prompt,
            images=[ov.Tensor(picture) for picture in pictures],
            audios=[ov.Tensor(signal) for signal in signals],
            text_config=config,
            talker_speech_config=speech,
        )
        return result.texts[0], int(result.perf_metrics.get_num_input_tokens())

    return generate


def ask(rig, prompt, colours=(), audio=(), **sampling):
    number = rig.next_id()
    params = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, **sampling}
    pixels = [bytes(COLOURS[c]) * (SIZE[0] * SIZE[1]) for c in colours]
    submit = Submit(
        number, prompt, False, None, False, asdict(SamplingParams(**params)), "", [list(SIZE)] * len(pixels)
    )
    submit.pixels, submit.audio, submit.num_audio = pixels, list(audio), len(audio)
    rig.put(submit)
    return number


def told(rig, request):
    answer = rig.answer(request)
    return rig.pipeline.decode(answer.tokens[0], True), answer.accepted.prompt_tokens


def sounds(count):
    return "".join(AUDIO_TAG.format(number) for number in range(count))


@pytest.mark.parametrize(
    ("colours", "audio"),
    [(("red",), ()), ((), (pcm(tone(8.0)),)), (("blue", "red"), (HIGH,))],
    ids=["image", "window", "both"],
)
def test_answers_are_those_of_openvino_genai(pipeline, direct, colours, audio):
    rig, asked = Rig(pipeline=pipeline), chat(tags(len(colours)) + "Hello!")
    # Openvino_genai puts the audio in front of the prompt.
    request = ask(rig, sounds(len(audio)) + asked, colours, audio)
    rig.run()
    assert told(rig, request) == direct(asked, colours, audio)
    assert_empty(rig)


def test_each_audio_has_its_own_place(pipeline, direct):
    rig, place = Rig(pipeline=pipeline), "<|audio_start|>" + 13 * "<|audio_pad|>" + "<|audio_end|>"
    request = ask(rig, chat(sounds(1) + "Hello!" + AUDIO_TAG.format(1)), (), (HIGH, LOW))
    rig.run()
    assert told(rig, request) == direct(chat(place + "Hello!" + place), (), (HIGH, LOW))


def test_no_request_hears_the_audio_of_another(pipeline):
    rig = Rig(pipeline=pipeline)
    plain = ask(rig, chat("Hello!"))
    heard = ask(rig, chat(sounds(1) + "Hello!"), (), (LOW,))
    after = ask(rig, chat("Hello!"))
    other = ask(rig, chat(sounds(1) + "Hello!"), (), (HIGH,))
    rig.run()
    assert (pipeline.info.vision, pipeline.info.audio) == (True, True)
    assert "<|audio_pad|>" in pipeline.info.image_tokens
    assert told(rig, after) == told(rig, plain)
    assert told(rig, heard)[0] != told(rig, other)[0]


def test_long_audio_has_a_token_for_80_ms(pipeline):
    """openvino_genai itself (2026.4.1) makes two tokens for each 80 ms after the first 8 s."""
    rig = Rig(pipeline=pipeline)
    request = ask(rig, chat(sounds(1)), (), (pcm(tone(20.0)),))
    short = ask(rig, chat(sounds(1)), (), (LOW[:200],))
    rig.run()
    assert told(rig, request)[1] - told(rig, short)[1] == 250 - 1


def spoken(rig, **more):
    """Runs a request for a spoken answer. Returns its tokens, its audio, and the contents of its records in order."""
    request = ask(rig, chat("Hello!"), **{"speaker": "", "max_tokens": 4, **more})
    rig.run()
    records = [r for frame in rig.transport.frames for r in frame if isinstance(r, SpokenTokens) and r.id == request]
    parts = [("tokens" if r.tokens and not r.reason else "", "audio" if r.audio else "", r.reason) for r in records]
    order = [part for record in parts for part in record if part]
    return [t for r in records for t in r.tokens], b"".join(r.audio for r in records), order


def test_an_answer_is_spoken_before_its_last_token(pipeline):
    rig = Rig(pipeline=pipeline)
    silent = ask(rig, chat("Hello!"), max_tokens=4)
    tokens, audio, order = spoken(rig)
    assert tokens == rig.answer(silent).tokens[0]
    assert order == sorted(order, key=["tokens", "audio", "length"].index)
    assert order[-1] == "length"
    assert len(audio) % 2 == 0
    assert 0 < len(audio) / 48_000 <= 5 * FRAMES_PER_TOKEN * 0.08
    assert spoken(rig)[:2] == (tokens, audio)  # the same seed
    assert spoken(rig, speaker="ethan")[1] != spoken(rig, speaker="chelsie")[1]
    assert_empty(rig)


def test_the_audio_is_that_of_openvino_genai(pipeline, folder):
    import openvino_genai as genai

    properties = resolve_stateful(Config(model_path=str(folder))).properties
    config, speech = genai.GenerationConfig(), genai.OmniTalkerSpeechConfig()
    config.max_new_tokens, config.apply_chat_template, config.ignore_eos = 4, False, True
    config.set_eos_token_id(2)
    speech.audio_chunk_frames, speech.max_new_tokens = CHUNK_FRAMES, 5 * FRAMES_PER_TOKEN
    result = genai.OmniPipeline(str(folder), "CPU", **properties).generate(
        chat("Hello!"), text_config=config, talker_speech_config=speech, speech_streamer=lambda chunk: None
    )
    expected = result.speech_result.waveforms[0].data.reshape(-1)
    found = np.frombuffer(spoken(Rig(pipeline=pipeline))[1], "<i2") / 32767
    assert np.abs(found - np.clip(expected, -1, 1)).max() < 1e-4


def test_a_client_that_leaves_ends_the_speech(pipeline):
    rig = Rig(pipeline=pipeline)
    request, gone = ask(rig, chat("Hello!"), speaker="", max_tokens=900), ask(rig, chat("Hello!"))
    after = ask(rig, chat("Hello!"), max_tokens=1)
    rig.turn(3)
    rig.put(Cancel(request), Cancel(gone))
    rig.run()
    assert rig.answer(after).reasons == {0: "length"}
    assert rig.answer(gone).reasons == {}
    assert_empty(rig)


def test_adapters_are_refused(folder):
    from lean_ovms.features.genai_pipelines.child.factory import load

    with pytest.raises(StartError, match="adapters"):
        load(Config(model_path=str(folder), lora_modules="a=/a"), "OMNI", ("CPU",))
