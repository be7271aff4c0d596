"""Checks of a machine, a store and a cluster, each with a fix."""
