"""The voice activity network of Silero, version 6, for 16 kHz, as published in the package silero-vad (MIT licence).

https://github.com/snakers4/silero-vad
"""
