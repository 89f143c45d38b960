"""Tests of lean_ovms.api.llama_cpp."""
