"""Reads what the files of a Whisper model say about its tokens, windows and languages. Imports no openvino."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ....errors import StartError
from ....util import files

HOP = 160
DEFAULT_FRAMES = 3000
DEFAULT_TARGET = 448
DEFAULT_INITIAL_TIMESTAMP = 50
TIME_STEP = 0.02
"""Seconds between two timestamp tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperFiles:
    """The ids of special tokens, and the sizes, that decoding needs of the files of a Whisper model."""

    eot: int
    """The id that ends a text."""
    sot: int
    """The id that begins one."""
    prev: int
    """The id before a prompt; -1: there is none."""
    no_timestamps: int
    """The id that asks for a text without times."""
    tasks: dict[str, int]
    """The ids of tasks, by their names."""
    languages: dict[str, int]
    """The ids of languages, by their codes; {} of an English model."""
    suppress: list[int]
    """The ids that are never generated."""
    begin_suppress: list[int]
    """Those that are not the first one."""
    initial_timestamp: int
    """How many steps of time the first timestamp may be after the beginning."""
    positions: int
    """The most tokens of the decoder, those of the prompt included."""
    mels: int
    """The number of mel bands."""
    frames: int
    """The frames of a window, of HOP samples each."""
    heads: list[tuple[int, int]]
    """The (layer, head) whose cross-attention follows the audio; []: they are not known."""

    @property
    def first_time(self) -> int:
        """The token <|0.00|>."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """The token for silence: in every vocabulary of Whisper the one before <|notimestamps|>."""
        return self.no_timestamps - 1


def read(path: Path) -> WhisperFiles:
    """Raises StartError for a directory without what decoding needs."""
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
        raise StartError(f"generation_config.json is not that of a Whisper model: {error!r}") from None
