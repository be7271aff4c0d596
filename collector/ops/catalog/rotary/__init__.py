"""Rotary position embeddings that write to no cache."""
