"""Operators on one dimension: reductions, running sums, softmax, sorting, selection in a row."""
