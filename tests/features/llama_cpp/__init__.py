"""Tests of lean_ovms.features.llama_cpp.api."""
