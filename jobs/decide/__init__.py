"""Decide the controller's actions from the desired and the observed state (pure functions)."""
