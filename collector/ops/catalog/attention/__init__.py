"""Attention of training and inference, over pages or selected keys, and joins of its parts."""
