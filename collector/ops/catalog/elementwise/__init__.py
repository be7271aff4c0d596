"""Elementwise operators: arithmetic, comparisons, logic, activations, masks, optimizer steps."""
