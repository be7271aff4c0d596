"""Operators that copy, join, repeat, convert or fill tensors, without a list of indices."""
