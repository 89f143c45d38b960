"""schemathesis (https://schemathesis.readthedocs.io) with the server's own OpenAPI document, through ASGI.

It sends requests that match the document and requests that do not, and checks status, content type, headers and body of
every response: requests that do not match are rejected, every status is documented, and those that match are accepted,
unless one of the RULES that a schema cannot express rejects them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis.errors import Unsatisfiable

from lean_ovms.api.app import App
from lean_ovms.api.generation.common_fields import UNSUPPORTED
from lean_ovms.features.asgi.adapter import Asgi
from tests.every_model import app_with_every_model
from tests.fuzz import examples

if TYPE_CHECKING:  # it takes half a second of CPU time, also in a process that runs none of these tests
    import schemathesis

ACCEPTED, SERVER_ERROR = "positive_data_acceptance", "not_a_server_error"
UPGRADE, NOT_SUPPORTED = 426, 501
FORWARDED = "/invocations"
"""A path whose body belongs to another endpoint, which documents what is accepted."""
EXAMPLES = examples(2)
RULES = re.compile(
    r" cannot (be used together|both be true)|must not have the same "  # two fields, or two forms of one
    r"| needs | requires | contradict each other| mutually exclusive| cannot be (combined with|greater than best_of)"
    r"|exceeds max_tokens|^max_tokens value should be greater than 0|^Input lengths must be"
    r"| provided, but | required, but |which is not in (tools|functions)"  # a field that needs another
    r"|limit of this server|this server's limit"
    r"|is not a token id in |supports only text"  # options, and properties of the model
    r"| is not accepted in requests; start the server |^this server does not store files"
    r"|(greater|less) than max_model_len"
    r"|maximum context length is|^suffix is not supported"
    r"|does not support Matryoshka|only supports (Matryoshka )?dimensions"
    r"|^(guided_json|json_schema|structured_outputs\.\w+) is not (valid JSON|a JSON schema)$"  # JSON within a text
    r"|^structured_outputs\.structural_tag(\.structures)? (is not an object|has neither|need)"
    r"|out of vocabulary|cannot be returned as text|The schema allows nothing|reads text only"
    r"|does not (read|accept|generate) audio|^audio\.format must be|^this endpoint does not read"
    r"|^Missing required parameter|^prompts with images have no token ids"
    r"|^continue_final_message: the final message has no text|^Unsupported (input_type|prompt_name|task:) "
    r"|^embed_dtype needs|has more than 64 parts"
    r"|use it at /|must have content$|document text field is missing"  # the model's task; one of several forms
    r"|min_count must be|max_pattern_size must be"
    r"|available voices|speed must be between|language must be one of|input has \d+ characters"
    r"|must be divisible by|prompt is empty"
    r"|response_format|input is (empty|not valid)"
    r"| with id .* not found|is not stored|model (field is missing|is required)"
    r"|^Invalid PDF file|^file_data is not a file in base64|^the file is neither|^the URL of a file must|^Given url"
    r"|does not have one token for each of|^pairs of texts are not supported|cannot be prewarmed$"
    r"|^modalities (array )?must "
    r"|^Invalid or unsupported audio file|^file is |^Unsupported language: |^to_language must be en"  # forms
    r"|^Missing required field|^Image parsing failed"
    r"|\" does not support (tools|thinking|insert)|^images cannot be combined|^raw mode does not support"  # Ollama's
    r"|Stream options can only be defined|support(ed)? (streaming|with beam search)|chunking_strategy must be"
)
"""Messages of errors 400 for requests that match the document: rules between fields, options of the server, stored
data."""

UNSUPPORTED_FIELD = re.compile(rf"^({'|'.join(UNSUPPORTED.names)})\b")
"""The beginning of the message for a field without an effect, which the document does not list."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    app = asyncio.run(app_with_every_model(metrics_enable=True))
    yield app
    asyncio.run(app.close())


def allowed_to_refuse(operation: schemathesis.APIOperation, response: schemathesis.Response) -> bool:
    """Returns whether a request that matches the document may be rejected in this way."""
    if response.status_code == UPGRADE or operation.path == FORWARDED:  # a plain request cannot open a WebSocket
        return True
    if response.status_code != 400:
        return False
    error = response.json()["error"]
    message = error if isinstance(error, str) else error["message"]  # Ollama's error is a text
    unsupported = UNSUPPORTED_FIELD.match(message)
    [media] = operation.definition.raw["requestBody"]["content"].values() if operation.body else [{}]
    documented = media.get("schema", {}).get("properties", {})
    return bool(RULES.search(message)) or (unsupported is not None and unsupported[1] not in documented)


def operations(app: App) -> Iterator[schemathesis.APIOperation]:
    import schemathesis

    schema = schemathesis.openapi.from_asgi("/openapi.json", Asgi(app.handle, 1 << 20))
    for found in schema.get_all_operations():
        yield found.ok()


@pytest.mark.parametrize("name", ["positive", "negative"])
def test_schemathesis_finds_no_fault(app: App, name: str) -> None:
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS

    asked, mode = 0, GenerationMode(name)

    def tried(operation: schemathesis.APIOperation) -> None:
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(EXAMPLES, phases=[Phase.generate])
        def ask(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            response = case.call()
            ruled = mode is GenerationMode.POSITIVE and allowed_to_refuse(operation, response)
            left_out = [CHECKS.get_one(ACCEPTED)] if ruled else []
            left_out += [CHECKS.get_one(SERVER_ERROR)] if response.status_code == NOT_SUPPORTED else []
            case.validate_response(response, excluded_checks=left_out)

        ask()

    for operation in operations(app):
        takes = operation.body or operation.query
        if mode is GenerationMode.NEGATIVE and not takes:
            continue  # a field that cannot be wrong
        try:
            tried(operation)
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, operation.label
    assert asked >= EXAMPLES.max_examples * 4
