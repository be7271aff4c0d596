"""Mixtures of experts: which expert a token goes to, and its way there and back."""
