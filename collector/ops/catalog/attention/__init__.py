"""Attention: of training, of serving, over pages or chosen keys, and its parts joined."""
