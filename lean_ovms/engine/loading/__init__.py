"""What every engine needs to load a model: its files, devices and settings, tokenizers, errors. Knows no pipeline."""
