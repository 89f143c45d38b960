"""The tier of the prefix cache on disk: files of blocks, and what is written and read when."""
