"""POST /embedding and /embeddings of llama.cpp's server: a list of objects with `index` and `embedding`.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. An embedding is a list of vectors, which has
one vector here. OpenAI's form is that of /v1/embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from ....api.fields import UINT32_MAX, Field, FieldSet, RouteDoc
from ....api.schemas import SOME_TEXT, all_of, any_of, array
from ....api.services import Services
from ....types import Json, Request, Response
from ...completions.prompt_pieces import SEVERAL, Pieces, read_several, tokens_of
from ...pooling import fields as shared
from ...pooling.api.chunks import encode_in_pieces
from ...pooling.api.encoding import FLOATS, bare_list
from ...pooling.api.inputs import with_texts
from ...pooling.api.request import PoolingRequest, parse
from ...pooling.feature import PoolingOptions
from ...pooling.types import EMBED, PooledOutput

NO_NORM, LENGTH = -1, 2
"""The values of embd_normalize for vectors as computed, and for vectors of length 1, which models make themselves."""
_SEVERAL = any_of(*SEVERAL["anyOf"], shared.TEXT_IN_OBJECT, array(any_of(SOME_TEXT, shared.TEXT_IN_OBJECT), 1))
CONTENT = Field(
    "content", "any", "a string, an array of token ids and strings, or an array of several inputs", schema=_SEVERAL
)
FIELDS = FieldSet((
    *shared.COMMON,
    *shared.TRUNCATION,
    shared.USE_ACTIVATION,
    CONTENT,
    Field("input", "any", "another name of content", schema=_SEVERAL),
    Field("embd_normalize", "int",
        "the p-norm by which vectors are divided: 2 is the length, 1 the sum of absolute values; 0 makes the largest "
        "absolute value 32760, and -1 leaves vectors as computed; as the model's files say if absent",
        low=NO_NORM, high=UINT32_MAX),
))  # fmt: skip
GIVEN = any_of(all_of("content"), all_of("input"))


@RouteDoc("A vector for each text, in llama.cpp's form", body=FIELDS, answer="array", rules=GIVEN)
async def handle(request: Request, services: Services) -> Response:
    call, contents, param = await services.parse_body(request, _read)
    info = call.info((EMBED,))
    items: list[str | list[int]] = []
    for pieces in contents:
        items.append(pieces[0] if len(pieces) == 1 else await tokens_of(pieces, True, call.model.encode))
    outputs = await encode_in_pieces(call, items, call.params(info, add_special_tokens=True), info, param)
    scaled = (_scaled(output, call.values["embd_normalize"]) for output in outputs)
    results = (b'{"index":%d,"embedding":[%b]}' % (i, FLOATS.json(output)) for i, output in enumerate(scaled))
    return await call.render(outputs, lambda: bare_list(results, call.headers))


def _scaled(output: PooledOutput, norm: int | None) -> PooledOutput:
    """Returns a vector divided by a norm, if the model has not done this already."""
    if norm in (None, NO_NORM, LENGTH):
        return output
    from ...pooling import vectors

    return replace(output, data=vectors.scaled(output.data, norm))


def _read(body: Json, services: Services) -> tuple[PoolingRequest, list[Pieces], str]:
    """Reads a body; returns the request, its contents, each of which becomes one vector, and the field with them."""
    call = parse(body, services, fields=FIELDS)
    values = call.values
    name = "input" if values["content"] is None else "content"
    if values["embd_normalize"] is not None:
        call = call.with_values({"use_activation": values["embd_normalize"] == LENGTH})
    most = services.config.of(PoolingOptions).max_pooling_inputs
    return call, read_several(with_texts(values[name], name), most, name), name
