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
    max_body_memory_mb: int = option(512, "MB for bodies of requests in work; others wait", group="limits", low=1)
    max_body_values: int = option(1 << 18, "values (or commas) in a JSON body; more: 400", group="limits", low=1 << 16)
    max_connections: int = option(1024, "open connections; more: the longest idle ends, or 503", group="limits", low=1)
    max_connections_per_client: int = option(
        0, "open connections of one address or IPv6 /64; 0: three quarters of max_connections", group="limits", low=0
    )
    header_timeout_s: float = option(20.0, "seconds to receive the headers; then 408", group="limits", low=0.1)
    body_timeout_s: float = option(60.0, "seconds to receive the body; then 408", group="limits", low=0.1)
    keep_alive_timeout_s: float = option(75.0, "seconds before an idle connection is closed", group="limits", low=0.1)
    stream_stall_timeout_s: float = option(
        60.0, "seconds before a request is cancelled whose client does not read the response", group="limits", low=0.1
    )
    request_timeout_s: float = option(0.0, "seconds before a generation is stopped; 0: no limit", group="limits", low=0)
    drain_timeout_s: float = option(30.0, "seconds for running requests to finish at shutdown", group="limits", low=0)
    drain_delay_s: float = option(
        0.0,
        "seconds after a stop signal in which readiness is 503 and requests are still served",
        group="limits",
        low=0,
    )
    template_timeout_s: float = option(
        2.0, "seconds of CPU time to render a chat template; more: 400", group="limits", low=0.05, high=600
    )
    max_pooling_inputs: int = option(
        2048, "inputs in one request of embeddings, score or classes; more: 400", group="limits", low=1
    )
    max_prompts: int = option(128, "prompts in one completions request; more: 400", group="limits", low=1, high=4096)

    # --- images
    allowed_media_domains: str = option(
        "",
        "hosts to fetch images from, separated by commas: names, *.name, addresses, networks; all: every public host; "
        "empty: none",
        group="images",
    )
    allowed_local_media_path: str = option("", "directory to read images from by path; empty: none", group="images")
    media_url_allow_redirects: bool = option(
        False, "follow redirects to allowed hosts", group="images", env="OVMS_MEDIA_URL_ALLOW_REDIRECTS"
    )
    max_images: int = option(32, "images in one request", group="images", low=1, high=1024)
    max_image_bytes: int = option(20_000_000, "bytes of an image file", group="images", low=64)
    max_image_pixels: int = option(1 << 25, "pixels of all images of a request", group="images", low=64, high=1 << 28)
    max_pixels_in_work: int = option(1 << 27, "pixels of all requests in work; others wait", group="images", low=64)
    max_image_side: int = option(
        0, "side in pixels of the square that larger images are scaled into; 0: no scaling", group="images", low=0
    )
    image_timeout_s: float = option(10.0, "seconds to fetch an image, and to decode it", group="images", low=0.1)

    # --- audio
    max_audio_file_bytes: int = option(25 << 20, "bytes of an audio file; more: 413", group="audio", low=64)
    max_audio_s: float = option(7200.0, "seconds of audio in a file; more: 400", group="audio", low=0.1, high=1 << 20)
    max_audio_channels: int = option(8, "channels of an audio file; more: 400", group="audio", low=1, high=64)
    min_audio_rate: int = option(
        4000, "samples a second, of each channel, of an audio file; fewer: 400", group="audio", low=100
    )
    max_audio_rate: int = option(192000, "the same; more: 400", group="audio", low=16000, high=1 << 20)
    max_audio_decoders: int = option(
        16, "processes that decode audio, one for each file in work; further files wait", group="audio", low=1
    )
    audio_timeout_s: float = option(10.0, "seconds to decode a block of audio", group="audio", low=0.1)

    # --- realtime
    max_realtime_sessions: int = option(16, "open sessions of /realtime; more: 429", group="realtime", low=1)
    max_response_websockets: int = option(64, "open WebSockets of /responses; more: 429", group="realtime", low=1)
    max_realtime_message_bytes: int = option(1 << 20, "bytes of a message; more: 1009", group="realtime", low=1 << 12)
    realtime_ahead_s: float = option(30.0, "seconds of audio read ahead of the engine", group="realtime", low=1)
    realtime_idle_timeout_s: float = option(60.0, "seconds without a message, then closed", group="realtime", low=1)
    max_realtime_session_s: float = option(
        3600.0, "seconds of a session or a WebSocket of /responses, then closed", group="realtime", low=1
    )
    realtime_partials: bool = option(True, "send stable text of an utterance before its end", group="realtime")
