"""Checks of a machine, a store and a cluster, each with what to do about it."""
