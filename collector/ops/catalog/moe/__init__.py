"""Mixtures of experts: routing of tokens to experts, and moving them there and back."""
