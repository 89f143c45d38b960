"""Loads a model directory as a Pooler: network, tokenizer, templates, and what the files say about them."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect
from ....engine.paged.network import file_of

# isort: split
from collections.abc import Sequence

import numpy as np
import openvino as ov

from ....config import EngineConfig
from ....engine.generation.image_prompts import image_tokens
from ....errors import BadRequest, StartError
from ....manifest import IMAGES_IN_TEXTS
from ....media import pixels
from ....media.pixels import SquareProcessor
from ....repository import model_config
from ....repository.model_dir import token_text
from ....types import IMAGE_TAG, Image
from ....types.engine import ModelInfo
from ..feature import PoolingOptions
from ..types import (
    ASSUMED_PROMPT,
    CLASSIFY,
    EMBED,
    IMAGES_ALONE,
    IN_PROMPT,
    IN_TEMPLATE,
    SCORE,
    TOKEN_CLASSIFY,
    VECTORS,
    PoolingInfo,
)
from . import dense, rerank_prompts
from . import files as pooling_files
from .files import PoolingFiles
from .model_kind import NO_YES, Shape, lost_limit, recognize
from .network import SHORT, PoolingNetwork
from .pooler import Array, Batch, PoolingVision
from .rerank_prompts import RerankPrompt
from .tokenizer import FilePoolingTokenizer, PoolingTokenizer

TRIAL = Image(64, 64, bytes(3 * 64 * 64))
"""An image that is computed before the model is ready."""


class ImagesAlone:
    """Prepares images for a model with two towers. An image counts as one token, as in vLLM."""

    token_id = 0

    def __init__(self, processor: SquareProcessor) -> None:
        self._processor = processor

    def text(self, text: str, images: Sequence[Image]) -> str:
        if len(images) > 1:
            raise BadRequest("This model reads one image for each vector", param=images[1].param)
        if text.strip() != IMAGE_TAG.format(0):
            raise BadRequest(
                "This model reads either a text or an image for each vector, not both", param=images[0].param
            )
        return ""

    def ids(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        return [self.token_id]

    def inputs(self, ids: Array, images: Sequence[Image]) -> dict[str, Array]:
        scaled = [self._processor.scale(self._processor.fitted(pixels.pixels(image))) for image in images]
        return {"pixel_values": np.stack(scaled)} if scaled else {}


log = logging.getLogger(__name__)

WARM_SHAPES = ((1, 16), (1, 32), (8, 32), (32, 32))
"""Batches computed before the model is ready: code for a shape is generated at its first use."""


class OpenVinoPooler:
    """A Pooler that computes with plain OpenVINO."""

    def __init__(self, config: EngineConfig) -> None:
        """Loads the networks and the tokenizer of a model. Raises StartError."""
        path = config.model_dir
        core = ov.Core()
        files = pooling_files.read(path)
        single = file_of(path)
        if single is not None:
            single.without_images(config, "a pooling model in a GGUF file does not read images")
        self._network = PoolingNetwork(core, config)
        self._tokenizer: FilePoolingTokenizer | PoolingTokenizer = (
            PoolingTokenizer(path, core) if single is None else FilePoolingTokenizer(single.tokenizer())
        )
        self.tokenize, self.widen, self.wait = self._tokenizer.encode, self._network.widen, self._network.wait
        shape = self._network.shape(unpooled=bool(config.of(PoolingOptions).pooling) or not files.pools_prompts)
        found = recognize(config, files, shape)
        self.template = self._tokenizer.template
        prompt, assumed = rerank_prompts.choose(files) if found.info.kind == SCORE else (None, False)
        self.prompt = None if prompt is None else rerank_prompts.encoded(prompt, self._tokenizer.encode)
        self.vocabulary = replace(self._tokenizer.vocabulary(), exact=False)
        self.pooling = replace(self._with_overheads(found.info), prompt_assumed=assumed)
        self.info = self._describe(files, self.pooling)
        self.vision: PoolingVision | None = None
        if found.info.images == IMAGES_ALONE:
            self.vision = ImagesAlone(_image_processor(path))
            self._network.read_images(found.info.window, self._filling(files))
        elif found.info.images:
            self.vision = self._images_in_text(config)
        if found.causal:
            self._network.compare_tokens(self._scored_tokens(prompt or rerank_prompts.QWEN3, files, shape))
        else:
            after = dense.layers(files, found.info, shape.output, shape.width)
            pools_prompts = found.info.pools_prompts
            self._network.pool(shape.output, found.info.pooling, after, pools_prompts=pools_prompts)
        self._warm_up()
        _report(config, self.pooling, lost_limit(files))

    # --- Pooler

    def detokenize(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of the ids, special ones from the vocabulary: the exported detokenizer drops these."""
        if skip_special_tokens or not self.vocabulary.special.intersection(tokens):
            return self._tokenizer.decode(tokens)
        pieces = self.vocabulary.pieces
        known = (pieces[token] for token in tokens if token < len(pieces))  # a network may have more than its tokenizer
        return b"".join(known).decode("utf-8", "replace")

    @property
    def slots(self) -> int:
        return self._network.slots

    def padded_length(self, needed: int) -> int:
        return self._network.padded_length(needed) if self.info.context_length >= SHORT else needed

    def start(self, batch: Batch, alone: bool) -> None:
        if self.vision is not None:
            batch.more = self.vision.inputs(batch.ids, batch.images)
        self._network.start(batch, batch.per_token and self.pooling.kind == EMBED, alone)

    # --- loading

    def _filling(self, files: PoolingFiles) -> int | None:
        """Returns the token with which texts are padded to the whole window, as SigLIP was trained; None for others."""
        if not str(files.config.get("model_type")).startswith("siglip"):
            return None
        token, pieces = token_text(files.tokenizer_config.get("pad_token")).encode(), self.vocabulary.pieces
        pad = files.config.get("pad_token_id")
        return pieces.index(token) if token in pieces else pad if type(pad) is int else 0

    def _images_in_text(self, config: EngineConfig) -> PoolingVision:
        """Returns the encoder of images within texts. Raises StartError if the feature that has it was left out."""
        new = config.part(IMAGES_IN_TEXTS)
        if new is None:
            raise StartError("the model reads images in texts, which needs the feature vision")
        found: PoolingVision = new(config, self.detokenize, self._network.image_shape())
        return found

    def _with_overheads(self, info: PoolingInfo) -> PoolingInfo:
        single = sum(map(len, self.template.single))
        if self.prompt is not None:
            fixed = len(self.prompt.prefix) + len(self.prompt.suffix)
            return replace(info, special_single=single, special_pair=fixed, pair=IN_PROMPT)
        if info.kind not in (SCORE, CLASSIFY):
            return replace(info, special_single=single)
        pair = sum(map(len, self.template.pair or ()))
        return replace(info, special_single=single, special_pair=pair, pair=IN_TEMPLATE)

    def _scored_tokens(self, prompt: RerankPrompt, files: PoolingFiles, shape: Shape) -> list[int]:
        """Returns the ids of the compared tokens, or their indices if the network has only these. Raises StartError."""
        if shape.width == len(NO_YES):
            return [files.labels.index(name) for name in NO_YES]
        return rerank_prompts.scored_tokens(prompt, files, self._tokenizer.encode)

    def _describe(self, files: PoolingFiles, info: PoolingInfo) -> ModelInfo:
        size = files.config.get("vocab_size")
        pad = files.config.get("pad_token_id")
        return ModelInfo(
            vocab_size=size if isinstance(size, int) and size > 0 else len(self.vocabulary.pieces),
            context_length=info.window,
            pad_token_id=pad if isinstance(pad, int) and pad >= 0 else 0,
            bos_token=token_text(files.tokenizer_config.get("bos_token")),
            eos_token=token_text(files.tokenizer_config.get("eos_token")),
            versions={"openvino": str(ov.get_version())},
            image_tokens=image_tokens(lambda text, _: self.tokenize([text])[0]) if info.images else [],
            of_task=asdict(info),
        )

    def _warm_up(self) -> None:
        """Computes small batches before the model is served. Raises StartError if the network fails."""
        window = self.pooling.window
        batches = [np.zeros((rows, min(size, window)), np.int64) for rows, size in WARM_SHAPES]
        warm = [Batch(ids, np.ones_like(ids), np.zeros_like(ids), False) for ids in batches]
        if self.vision is not None:
            ids = np.array([self.vision.ids([self.vision.token_id], (TRIAL,))], np.int64)
            warm.append(Batch(ids, np.ones_like(ids), np.zeros_like(ids), False, (TRIAL,)))
        for batch in warm:
            try:
                self.start(batch, True)
                _, output = self._network.wait()
                if isinstance(output, RuntimeError):
                    raise output
            except RuntimeError as error:
                raise StartError(f"the network failed to compute: {error}") from error


def _image_processor(path: Path) -> SquareProcessor:
    """Reads the settings of image preprocessing from preprocessor_config.json. Raises StartError."""
    try:
        return SquareProcessor.read(model_config.processor(path, "image"))
    except (KeyError, TypeError, ValueError) as error:
        raise StartError(f"{path}/preprocessor_config.json does not say how images are resized: {error!r}") from error


def _report(config: EngineConfig, info: PoolingInfo, limit: int) -> None:
    """Logs how the model computes vectors or scores, and warns of a window that is too long.

    Args:
        config: The options of the engine.
        info: The description of the model.
        limit: The most tokens of an input that the original model allows, where the export has lost that file; 0 if it
            is unknown. A window that is longer is logged as a warning.
    """
    if 0 < limit < info.window:
        text = (
            "%s: inputs may have up to %d tokens; the model's own sentence_bert_config.json, missing in the export, "
            "allows %d, which --max_model_len %d sets"
        )
        log.warning(text, config.served_name, info.window, limit, limit)
    if info.kind in VECTORS:
        how = "normalized" if info.normalize else "not normalized"
        level = logging.WARNING if info.pooling_assumed else logging.INFO
        log.log(
            level, "%s: pooling %s, according to %s; %s", config.served_name, info.pooling, info.pooling_source, how
        )
    elif info.prompt_assumed:
        log.warning("%s: scored with %s", config.served_name, ASSUMED_PROMPT)
    elif info.kind != TOKEN_CLASSIFY:
        log.info("%s: %d outputs, activation %s", config.served_name, info.outputs, info.activation)
