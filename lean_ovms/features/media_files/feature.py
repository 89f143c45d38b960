"""The manifest of media files, with the options of the features that read or write them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import PRESENT_DIRECTORY, Options, option
from ...manifest import Feature

_images = partial(option, group="images")
_audio = partial(option, group="audio")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ImageFileOptions(Options):
    """The allowed sources of images and videos, and limits of their size."""

    allowed_media_domains: str = _images(
        "",
        "hosts from which images and other files may be fetched, separated by commas: names, *.NAME, addresses or "
        "networks; all for every public host; none if empty",
    )
    allowed_local_media_path: str = _images(
        "", "directory of images that requests may name by their paths; none if empty", path=PRESENT_DIRECTORY
    )
    media_url_allow_redirects: bool = _images(
        False, "follow redirects, to allowed hosts only, when an image is fetched", env="OVMS_MEDIA_URL_ALLOW_REDIRECTS"
    )
    max_images: int = _images(
        32, "maximum number of images in one request; more are rejected with 400", low=1, high=1024
    )
    max_image_bytes: int = _images(
        20_000_000, "maximum size of an image file in bytes; larger ones are rejected with 400", low=64
    )
    max_image_pixels: int = _images(
        1 << 25,
        "maximum number of pixels of all images of a request together; more are rejected with 400",
        low=64,
        high=1 << 28,
    )
    max_pixels_in_work: int = _images(
        1 << 27, "maximum number of pixels in the images of all running requests; further requests wait", low=64
    )
    max_image_side: int = _images(
        0, "scale larger images down to fit a square with sides of this many pixels; 0 for no scaling", low=0
    )
    image_timeout_s: float = _images(
        10.0, "maximum seconds for fetching an image, and as many for decoding it", low=0.1
    )
    max_video_bytes: int = _images(
        100_000_000, "maximum size of a video file in bytes; larger ones are rejected with 400", low=64
    )
    max_video_s: float = _images(
        3600.0, "maximum length of a video in seconds; longer ones are rejected with 400", low=0.1, high=1 << 20
    )
    max_video_frames: int = _images(
        128,
        "maximum number of frames of a video that the model reads; requests for more are rejected with 400",
        low=1,
        high=4096,
    )
    max_video_pixels: int = _images(
        1 << 23,
        "maximum number of pixels of all frames of a video that the model reads; larger frames are scaled down",
        low=64,
        high=1 << 28,
    )
    video_num_frames: int = _images(32, "frames sampled evenly from a video if a request does not say how many", low=1)
    video_timeout_s: float = _images(60.0, "maximum seconds for fetching a video, and as many for decoding it", low=0.1)

    def check(self, config: Any) -> None:
        """Checks the syntax of the list of hosts. Raises StartError."""
        if self.allowed_media_domains:
            from .images.allowed_hosts import AllowedHosts  # late, because most servers do not need it at the start

            AllowedHosts(self.allowed_media_domains)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AudioFileOptions(Options):
    """The limits of audio files, and of their number that is decoded at once."""

    max_audio_file_bytes: int = _audio(
        25 << 20, "maximum size of an audio file in bytes; larger ones are rejected with 413", low=64
    )
    max_audio_s: float = _audio(
        7200.0, "maximum length of an audio file in seconds; longer ones are rejected with 400", low=0.1, high=1 << 20
    )
    max_audio_channels: int = _audio(
        8, "maximum number of channels of an audio file; more are rejected with 400", low=1, high=64
    )
    min_audio_rate: int = _audio(
        4000, "lowest sample rate of an audio file in Hz; lower ones are rejected with 400", low=100
    )
    max_audio_rate: int = _audio(
        192000, "highest sample rate of an audio file in Hz; higher ones are rejected with 400", low=16000, high=1 << 20
    )
    max_audio_decoders: int = _audio(
        16, "maximum number of processes that decode audio, one for each file; further files wait", low=1
    )
    audio_timeout_s: float = _audio(10.0, "maximum seconds for decoding a block of audio", low=0.1)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SpokenTextOptions(Options):
    """The limit of a text that is spoken."""

    max_speech_characters: int = option(
        4096,
        "maximum number of characters of text in one speech request; longer texts are rejected with 400",
        group="model",
        low=1,
        high=1 << 20,
        tasks=("text2speech",),
    )


FEATURE = Feature(
    name="media_files",
    summary="decodes the images, videos and audio files of requests, and encodes audio, in separate processes",
    packages=("av", "soundfile"),
)
