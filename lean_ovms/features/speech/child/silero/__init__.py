"""The voice activity network of Silero, version 6, as published in the package silero-vad: 16 kHz, MIT licence.

https://github.com/snakers4/silero-vad
"""
