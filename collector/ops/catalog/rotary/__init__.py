"""Rotary positions, where nothing is written to a cache."""
