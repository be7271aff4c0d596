"""A surface of durations over shapes, learned from some of its points.

It predicts the durations of the other points and their uncertainty, and selects the next points to
measure. The code is pure: arrays in, arrays out.
"""
