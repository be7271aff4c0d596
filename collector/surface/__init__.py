"""Durations over shapes, learned from some of their points. Pure: arrays in, arrays out."""
