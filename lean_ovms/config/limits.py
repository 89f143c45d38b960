"""Options that bound what clients may use: connections, bodies, images, audio, live sessions."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options, option


@dataclass(frozen=True, kw_only=True)
class LimitOptions(Options):
    """The limits that the server itself keeps; those of the engine are in EngineOptions."""

    # --- limits
    max_header_bytes: int = option(65536, "bytes of request line and headers; more: 431", group="limits", low=1024)
    max_body_bytes: int = option(32 << 20, "bytes of a request body; more: 413", group="limits", low=1024)
    max_body_memory_mb: int = option(
        512, "MB for the bodies of all running requests; others wait", group="limits", low=1
    )
    max_body_values: int = option(1 << 18, "values (or commas) in a JSON body; more: 400", group="limits", low=1 << 16)
    max_connections: int = option(
        1024,
        "open connections; one more closes the one that has been idle longest, or is answered 503",
        group="limits",
        low=1,
    )
    max_connections_per_client: int = option(
        0, "open connections of one address or IPv6 /64; 0: three quarters of max_connections", group="limits", low=0
    )
    header_timeout_s: float = option(
        20.0, "seconds to receive the headers of a request; more: 408", group="limits", low=0.1
    )
    body_timeout_s: float = option(60.0, "seconds to receive the body of a request; more: 408", group="limits", low=0.1)
    keep_alive_timeout_s: float = option(
        75.0, "close a connection that has been idle for this many seconds", group="limits", low=0.1
    )
    stream_stall_timeout_s: float = option(
        60.0, "cancel a request whose client has not read its response for this many seconds", group="limits", low=0.1
    )
    request_timeout_s: float = option(
        0.0, "stop a generation after this many seconds; 0: no limit", group="limits", low=0
    )
    drain_timeout_s: float = option(
        30.0, "seconds that running requests have to finish at shutdown", group="limits", low=0
    )
    drain_delay_s: float = option(
        0.0,
        "seconds after a stop signal during which readiness is 503 but requests are still served",
        group="limits",
        low=0,
    )
    template_timeout_s: float = option(
        2.0, "seconds of CPU time to render a chat template; more: 400", group="limits", low=0.05, high=600
    )
    max_pooling_inputs: int = option(
        2048, "inputs in one embeddings, score or classification request; more: 400", group="limits", low=1
    )
    max_prompts: int = option(128, "prompts in one completions request; more: 400", group="limits", low=1, high=4096)

    # --- images
    allowed_media_domains: str = option(
        "",
        "hosts that images may be fetched from, separated by commas: names, *.name, addresses or networks; all: "
        "every public host; empty: none",
        group="images",
    )
    allowed_local_media_path: str = option(
        "", "directory that images may be read from by path; empty: none", group="images"
    )
    media_url_allow_redirects: bool = option(
        False, "follow redirects to allowed hosts", group="images", env="OVMS_MEDIA_URL_ALLOW_REDIRECTS"
    )
    max_images: int = option(32, "images in one request", group="images", low=1, high=1024)
    max_image_bytes: int = option(20_000_000, "bytes of an image file", group="images", low=64)
    max_image_pixels: int = option(1 << 25, "pixels of all images of a request", group="images", low=64, high=1 << 28)
    max_pixels_in_work: int = option(
        1 << 27, "pixels of the images of all running requests; others wait", group="images", low=64
    )
    max_image_side: int = option(
        0, "scale larger images down to fit a square with sides of so many pixels; 0: no scaling", group="images", low=0
    )
    image_timeout_s: float = option(10.0, "seconds to fetch an image, and again to decode it", group="images", low=0.1)

    # --- audio
    max_audio_file_bytes: int = option(25 << 20, "bytes of an audio file; more: 413", group="audio", low=64)
    max_audio_s: float = option(7200.0, "seconds of audio in a file; more: 400", group="audio", low=0.1, high=1 << 20)
    max_audio_channels: int = option(8, "channels of an audio file; more: 400", group="audio", low=1, high=64)
    min_audio_rate: int = option(4000, "lowest sample rate of an audio file in Hz; lower: 400", group="audio", low=100)
    max_audio_rate: int = option(
        192000, "highest sample rate of an audio file in Hz; higher: 400", group="audio", low=16000, high=1 << 20
    )
    max_audio_decoders: int = option(
        16, "processes that decode audio, one for each file at work; further files wait", group="audio", low=1
    )
    audio_timeout_s: float = option(10.0, "seconds to decode a block of audio", group="audio", low=0.1)

    # --- realtime
    max_realtime_sessions: int = option(16, "open sessions of /realtime; more: 429", group="realtime", low=1)
    max_response_websockets: int = option(64, "open WebSockets of /responses; more: 429", group="realtime", low=1)
    max_realtime_message_bytes: int = option(
        1 << 20, "bytes of one WebSocket message; more: closed with code 1009", group="realtime", low=1 << 12
    )
    realtime_ahead_s: float = option(
        30.0, "seconds of audio that are read ahead of the engine", group="realtime", low=1
    )
    realtime_idle_timeout_s: float = option(
        60.0, "close a session after this many seconds without a message", group="realtime", low=1
    )
    max_realtime_session_s: float = option(
        3600.0,
        "close a realtime session, or a WebSocket of /responses, after this many seconds",
        group="realtime",
        low=1,
    )
    realtime_partials: bool = option(
        True, "send the stable part of an utterance's text before the utterance ends", group="realtime"
    )
