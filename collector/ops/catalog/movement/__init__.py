"""Tensors copied, joined, repeated, converted or filled, without a list that tells where."""
