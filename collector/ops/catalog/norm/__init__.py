"""Rows normalised by their own statistics, perhaps with a sum before it or INT8 behind it."""
