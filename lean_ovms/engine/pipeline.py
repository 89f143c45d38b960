"""openvino_genai's continuous batching behind the contract. The only file of the child that imports it.

Every GenerationConfig is built here, field by field, from what checks.py has let through; nothing that a client sent
reaches the binding otherwise. stop_strings, num_beam_groups, tree_depth, adapters and the like are never set, and n is
never more than 1: GenAI does these wrongly, or dies of them.
"""

from __future__ import annotations

from . import quiet  # noqa: F401 - first, for its effect

# isort: split
import logging
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from ..config import Config
from ..errors import BadRequest, StartError
from ..shapes import ModelInfo, Sampling
from . import vocabulary
from .checks import MAX_SEED
from .contract import ASSISTANT_TOKENS, NGRAM_SIZE, Grammars, Handle, Status, Work
from .grammar_check import Checker, Settings
from .grammar_compiler import GrammarCompiler, in_token_text, logits_width, structured
from .plan import Plan, free_memory_bytes, make
from .recovery import last_line

log = logging.getLogger(__name__)

MODEL_FILES = ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml")
PROBE_TOKENS = 33
"""A prompt that takes two blocks of 32, or three of 16: enough to measure the cache with."""
WARM_LENGTHS = (8, 40, 250)
GREEDY_BELOW = 1e-5
"""Temperatures that divide every logit to infinity mean greedy decoding (vLLM's limit too)."""


class GenAi:
    """A contract.Pipeline on openvino_genai.ContinuousBatchingPipeline."""

    def __init__(self, config: Config, plan: Plan | None = None) -> None:
        """Load and warm up. Raises errors.StartError with one line that tells what is wrong."""
        plan = plan or make(config, free_memory_bytes())
        _look_for_files(config)
        try:
            self._pipe = _build(config, plan)
            self._tokenizer = self._pipe.get_tokenizer()
            self._defaults = self._pipe.get_config()
            self._eos = int(self._defaults.eos_token_id)
            self._next_id = 0
            self._assisted = plan.assisted
            blocks = self._measure(plan)
            self._warm_up(plan)
        except (RuntimeError, TypeError, ValueError) as error:
            raise StartError(f"the model does not load: {last_line(error)}") from error
        self.recoverable = plan.assisted != "draft"
        self.step_tokens = plan.step_tokens
        self.info = self._describe(plan, blocks, in_token_text(config.model_dir))
        self.vocabulary = vocabulary.build(config.model_dir, self._tokenizer)
        self.grammars = self._grammars(config)

    # --- contract

    def check(self, work: Work) -> None:
        try:
            self._config(work).validate()
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadRequest(last_line(error)) from error

    def add(self, work: Work) -> Handle:
        self._next_id += 1  # two live requests with one id poison the pipeline
        tokens = ov.Tensor(np.array([work.tokens], dtype=np.int64))
        try:
            handle: Handle = self._pipe.add_request(self._next_id, tokens, self._config(work))
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadRequest(last_line(error)) from error
        return handle

    def step(self) -> None:
        self._pipe.step()

    def busy(self) -> bool:
        return bool(self._pipe.has_non_finished_requests())

    def scheduled(self) -> int:
        return int(self._pipe.get_metrics().scheduled_requests)

    def status(self, handle: Handle) -> Status:
        status = handle.get_status()  # type: ignore[attr-defined]  # every handle here is the binding's own
        if status == genai.GenerationStatus.RUNNING:
            return "running"
        return "lost" if status == genai.GenerationStatus.IGNORED else "finished"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            inputs = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except TypeError as error:  # the binding takes strings that UTF-8 can express, and nothing else
            raise BadRequest("the text is not valid Unicode (lone surrogates)") from error
        ids: list[int] = inputs.input_ids.data.reshape(-1).tolist()
        return ids

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))

    # --- configuration of one request

    def _config(self, work: Work) -> Any:
        asked = work.sampling
        config = genai.GenerationConfig()
        if self._eos >= 0:
            config.set_eos_token_id(self._eos)
        # A request's stop ids replace the model's list in GenAI; `stops` holds both.
        config.stop_token_ids = set(work.stops) | ({self._eos} if self._eos >= 0 else set())
        config.ignore_eos = asked.ignore_eos
        config.max_new_tokens = work.max_tokens
        config.min_new_tokens = work.min_tokens
        config.logprobs = 1 if asked.logprobs or work.echo else 0
        config.echo = work.echo
        if asked.beams > 1:
            config.num_beams = asked.beams
            config.num_return_sequences = asked.n
            config.length_penalty = asked.length_penalty
        else:
            self._set_sampling(config, work)
        self._set_assistant(config, work)
        if work.constraint:
            config.structured_output_config = structured(work.constraint)
        return config

    def _set_sampling(self, config: Any, work: Work) -> None:
        asked = work.sampling
        config.repetition_penalty = asked.repetition_penalty
        config.presence_penalty = asked.presence_penalty
        config.frequency_penalty = asked.frequency_penalty
        if asked.temperature <= GREEDY_BELOW:
            return
        config.do_sample = True
        config.rng_seed = (work.seed + work.done) & MAX_SEED
        config.temperature = asked.temperature
        config.top_p = asked.top_p
        config.min_p = asked.min_p
        if asked.top_k:
            config.top_k = asked.top_k

    def _set_assistant(self, config: Any, work: Work) -> None:
        """Every request of an assisted pipeline has these; without one they would hang the request."""
        asked = work.sampling
        if self._assisted == "draft" and asked.assistant_confidence_threshold:
            config.assistant_confidence_threshold = asked.assistant_confidence_threshold
        elif self._assisted:
            config.num_assistant_tokens = asked.num_assistant_tokens
        if self._assisted == "prompt_lookup":
            config.max_ngram_size = asked.max_ngram_size

    # --- loading

    def _run(self, prompts: list[list[int]], max_tokens: int) -> None:
        """Generate and forget; only while loading."""
        asked = Sampling(
            temperature=0.0,
            num_assistant_tokens=ASSISTANT_TOKENS if self._assisted else 0,
            max_ngram_size=NGRAM_SIZE if self._assisted == "prompt_lookup" else 0,
        )
        handles = []
        for tokens in prompts:
            work = Work(tokens=tokens, sampling=asked, max_tokens=max_tokens, min_tokens=0, seed=0, stops=frozenset())
            handles.append(self.add(work))
        while self._pipe.has_non_finished_requests():
            self._pipe.step()

    def _measure(self, plan: Plan) -> int:
        """KV blocks of the cache, from the share of it that a known number of blocks takes."""
        self._run([_prompt(PROBE_TOKENS, 0)], 1)
        share = self._pipe.get_metrics().cache_usage / 100
        used = -(-PROBE_TOKENS // plan.block_size)
        measured = round(used / share) if share > 0 else 0
        if plan.blocks and measured and measured < plan.blocks:
            log.warning("the KV cache has %d blocks instead of %d", measured, plan.blocks)
        return min(plan.blocks, measured) if plan.blocks and measured else plan.blocks or measured

    def _grammars(self, config: Config) -> Grammars | None:
        try:
            width = logits_width(config.model_dir)
            compiler = GrammarCompiler(self._tokenizer, width)
        except (RuntimeError, TypeError, ValueError, OSError) as error:
            log.warning("no structured output with this model: %s", last_line(error))
            return None
        settings = Settings(
            model_dir=str(config.model_dir),
            width=width,
            timeout_s=config.grammar_timeout_s,
            memory_bytes=config.grammar_memory_mb << 20,
        )
        return Grammars(compiler, Checker(settings))

    def _warm_up(self, plan: Plan) -> None:
        """First prompts of a length and first batch sizes cost several times as much as later ones."""
        lengths = [n for n in WARM_LENGTHS if n + 8 <= min(plan.context, plan.step_tokens)]
        for seed, length in enumerate(lengths, 1):
            self._run([_prompt(length, seed)], 4)
        self._run([_prompt(8, seed) for seed in range(10, 14)], 4)

    def _describe(self, plan: Plan, blocks: int, sentencepiece: bool) -> ModelInfo:
        tokenizer = self._tokenizer
        eos = {int(i) for i in self._defaults.stop_token_ids} | {self._eos, int(tokenizer.get_eos_token_id())}
        return ModelInfo(
            vocab_size=plan.vocab_size or len(tokenizer.get_vocab_vector()),
            context_length=plan.context,
            kv_blocks=blocks,
            block_size=plan.block_size,
            eos_token_ids=sorted(i for i in eos if i >= 0),
            pad_token_id=max(0, int(tokenizer.get_pad_token_id())),
            bos_token=tokenizer.get_bos_token(),
            eos_token=tokenizer.get_eos_token(),
            chat_template=tokenizer.get_original_chat_template(),
            assisted=plan.assisted,
            prefix_caching=plan.prefix_caching,
            versions={
                "openvino": ov.get_version(),
                "openvino_genai": genai.__version__,
            },
            sentencepiece=sentencepiece,
        )


def _prompt(length: int, seed: int) -> list[int]:
    """Some ids that every vocabulary has, different from the first on for every seed."""
    return [(seed + i) % 32 for i in range(length)]


def _look_for_files(config: Config) -> None:
    """GenAI loads a model without a tokenizer, and fails with the first text; it explains a missing file badly."""
    wanted = [(config.model_dir, name) for name in MODEL_FILES]
    if config.draft_model_path:
        wanted.append((Path(config.draft_model_path), MODEL_FILES[0]))
    for folder, name in wanted:
        if not (folder / name).is_file():
            raise StartError(f"{folder} has no {name}")


def _build(config: Config, plan: Plan) -> Any:
    scheduler = _scheduler(config, plan, plan.blocks)
    properties = dict(plan.properties)
    if plan.assisted == "prompt_lookup":
        properties["prompt_lookup"] = True
    if plan.assisted == "draft":
        device = config.draft_device or plan.device
        properties["draft_model"] = genai.draft_model(
            config.draft_model_path, device, scheduler_config=scheduler, **plan.properties
        )
    return genai.ContinuousBatchingPipeline(str(config.model_dir), scheduler, plan.device, properties)


def _scheduler(config: Config, plan: Plan, blocks: int) -> Any:
    scheduler = genai.SchedulerConfig()
    if blocks:
        scheduler.num_kv_blocks = blocks
    else:
        scheduler.cache_size = plan.cache_gb
    scheduler.max_num_batched_tokens = plan.step_tokens
    scheduler.max_num_seqs = config.max_num_seqs
    scheduler.dynamic_split_fuse = plan.split_prompts
    scheduler.enable_prefix_caching = plan.prefix_caching
    return scheduler
