"""Options that bound what clients may use: connections, bodies, images, audio, live sessions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .options import Options, option

_limits = partial(option, group="limits")
_images = partial(option, group="images")
_audio = partial(option, group="audio")
_realtime = partial(option, group="realtime")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LimitOptions(Options):
    """The limits that the server itself keeps; those of the engine are in EngineOptions."""

    # --- limits
    max_header_bytes: int = _limits(65536, "most bytes of the request line and headers; more: 431", low=1024)
    max_body_bytes: int = _limits(32 << 20, "most bytes of a request body; more: 413", low=1024)
    max_body_memory_mb: int = _limits(
        512, "MB for the bodies of all running requests together; further requests wait", low=1
    )
    max_body_values: int = _limits(
        1 << 18, "most values in a JSON body, counted by its commas, colons and brackets; more: 400", low=1 << 16
    )
    max_connections: int = _limits(
        1024,
        "most open connections; a further one closes the longest idle one, and is answered 503 if none is idle",
        low=1,
    )
    max_connections_per_client: int = _limits(
        0,
        "most open connections of one address, or of one IPv6 network of 64 bits; 0: three quarters of max_connections",
        low=0,
    )
    header_timeout_s: float = _limits(
        20.0, "seconds in which the headers of a request must arrive; later: 408", low=0.1
    )
    body_timeout_s: float = _limits(60.0, "seconds in which the body of a request must arrive; later: 408", low=0.1)
    keep_alive_timeout_s: float = _limits(75.0, "close a connection that has been idle for this many seconds", low=0.1)
    stream_stall_timeout_s: float = _limits(
        60.0, "cancel a request whose client has not read its response for this many seconds", low=0.1
    )
    request_timeout_s: float = _limits(0.0, "stop a generation after this many seconds; 0: no limit", low=0)
    drain_timeout_s: float = _limits(30.0, "seconds that running requests have to finish when the server stops", low=0)
    drain_delay_s: float = _limits(
        0.0, "seconds after a stop signal in which readiness is 503 and requests are still served", low=0
    )
    template_timeout_s: float = _limits(
        2.0, "CPU seconds that rendering a chat template may take; more: 400", low=0.05, high=600
    )
    max_prompts: int = _limits(128, "most prompts in one completions request; more: 400", low=1, high=4096)

    # --- images
    allowed_media_domains: str = _images(
        "",
        "hosts that images may be fetched from, separated by commas: names, *.NAME, addresses or networks; all: every"
        " public host; empty: none",
    )
    allowed_local_media_path: str = _images(
        "", "directory that requests may name images in, by their paths; empty: none"
    )
    media_url_allow_redirects: bool = _images(
        False, "follow redirects, to allowed hosts only, when an image is fetched", env="OVMS_MEDIA_URL_ALLOW_REDIRECTS"
    )
    max_images: int = _images(32, "most images in one request; more: 400", low=1, high=1024)
    max_image_bytes: int = _images(20_000_000, "most bytes of an image file; more: 400", low=64)
    max_image_pixels: int = _images(
        1 << 25, "most pixels of all images of a request together; more: 400", low=64, high=1 << 28
    )
    max_pixels_in_work: int = _images(
        1 << 27, "most pixels in the images of all running requests; further requests wait", low=64
    )
    max_image_side: int = _images(
        0, "scale a larger image down until it fits a square with sides of this many pixels; 0: no scaling", low=0
    )
    image_timeout_s: float = _images(
        10.0, "seconds that fetching an image may take, and as many for decoding it", low=0.1
    )

    max_video_bytes: int = _images(100_000_000, "most bytes of a video file; more: 400", low=64)
    max_video_s: float = _images(3600.0, "most seconds of a video; more: 400", low=0.1, high=1 << 20)
    max_video_frames: int = _images(
        128, "most frames of a video that the model reads; 400 if a request asks for more", low=1, high=4096
    )
    max_video_pixels: int = _images(
        1 << 23,
        "most pixels of all frames of a video that the model reads; larger frames are scaled down",
        low=64,
        high=1 << 28,
    )
    video_num_frames: int = _images(
        32, "frames that are taken from a video, evenly, where a request does not say how many", low=1
    )
    video_timeout_s: float = _images(
        60.0, "seconds that fetching a video may take, and as many for decoding it", low=0.1
    )

    # --- audio
    max_audio_file_bytes: int = _audio(25 << 20, "most bytes of an audio file; more: 413", low=64)
    max_audio_s: float = _audio(7200.0, "most seconds of sound in an audio file; more: 400", low=0.1, high=1 << 20)
    max_audio_channels: int = _audio(8, "most channels of an audio file; more: 400", low=1, high=64)
    min_audio_rate: int = _audio(4000, "lowest sample rate of an audio file in Hz; lower: 400", low=100)
    max_audio_rate: int = _audio(
        192000, "highest sample rate of an audio file in Hz; higher: 400", low=16000, high=1 << 20
    )
    max_audio_decoders: int = _audio(
        16, "most processes that decode audio, one for each file; further files wait", low=1
    )
    max_audio_parts: int = _audio(32, "most audio files in one request; more: 400", low=1, high=1024)
    audio_timeout_s: float = _audio(10.0, "seconds that decoding a block of audio may take", low=0.1)

    # --- realtime
    max_realtime_message_bytes: int = _realtime(
        1 << 20, "most bytes of one WebSocket message; more: the connection is closed with code 1009", low=1 << 12
    )
    max_realtime_session_s: float = _realtime(
        3600.0, "close a realtime session, or a WebSocket of /responses, after this many seconds", low=1
    )
