"""Images, videos and audio files of requests, and audio that is spoken, for the features that have them."""
