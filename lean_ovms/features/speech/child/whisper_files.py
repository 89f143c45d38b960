"""Reads the special tokens, sizes and languages of a Whisper model from its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ....errors import StartError
from ....util import files

HOP = 160
"""Samples of a frame of features."""
DEFAULT_FRAMES = 3000
DEFAULT_TARGET = 448
DEFAULT_INITIAL_TIMESTAMP = 50
TIME_STEP = 0.02
"""Seconds between two timestamp tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperFiles:
    """The special tokens, sizes and languages of a Whisper model."""

    eot: int
    """The token that ends a text, <|endoftext|>."""
    sot: int
    """The token that begins a text, <|startoftranscript|>."""
    prev: int
    """The token before a prompt, <|startofprev|>; -1 if there is none."""
    no_timestamps: int
    """The token that asks for a text without timestamps, <|notimestamps|>."""
    tasks: dict[str, int]
    """The tokens of tasks, by their names."""
    languages: dict[str, int]
    """The tokens of languages, by their codes; {} if the model is for English only."""
    suppress: list[int]
    """The tokens that are never generated."""
    begin_suppress: list[int]
    """The tokens that are never the first one of a text."""
    initial_timestamp: int
    """The latest first timestamp of a text, in steps of TIME_STEP seconds."""
    positions: int
    """The most tokens of the decoder, including those of the prompt."""
    mels: int
    """The number of mel bands."""
    frames: int
    """The number of frames of a window, of HOP samples each."""
    heads: list[tuple[int, int]]
    """The (layer, head) pairs whose cross-attention follows the audio, for word times; [] if they are not known."""

    @property
    def first_time(self) -> int:
        """The first timestamp token, <|0.00|>."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """The token for silence, which in every vocabulary of Whisper is the one before <|notimestamps|>."""
        return self.no_timestamps - 1


def read(path: Path) -> WhisperFiles:
    """Reads the files of a model directory. Raises StartError if they lack something that decoding needs."""
    generation = files.read_object(path / "generation_config.json")
    config = files.read_object(path / "config.json")
    processor = files.read_object(path / "preprocessor_config.json")
    both = {**config, **generation}
    try:
        eos = both["eos_token_id"]
        return WhisperFiles(
            eot=int(eos[0] if isinstance(eos, list) else eos),
            sot=int(both["decoder_start_token_id"]),
            prev=int(generation.get("prev_sot_token_id", -1)),
            no_timestamps=int(generation["no_timestamps_token_id"]),
            tasks={str(name): int(token) for name, token in (generation.get("task_to_id") or {}).items()},
            languages={
                str(name).strip("<|>"): int(token)
                for name, token in sorted((generation.get("lang_to_id") or {}).items(), key=lambda row: row[1])
            },
            suppress=[int(token) for token in generation.get("suppress_tokens") or () if int(token) >= 0],
            begin_suppress=[int(token) for token in generation.get("begin_suppress_tokens") or ()],
            initial_timestamp=int(generation.get("max_initial_timestamp_index") or DEFAULT_INITIAL_TIMESTAMP),
            positions=int(config.get("max_target_positions") or DEFAULT_TARGET),
            mels=int(processor.get("feature_size") or config.get("num_mel_bins") or 80),
            frames=int(processor.get("nb_max_frames") or DEFAULT_FRAMES),
            heads=[(int(layer), int(head)) for layer, head in generation.get("alignment_heads") or ()],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StartError(f"generation_config.json does not belong to a Whisper model: {error!r}") from None
