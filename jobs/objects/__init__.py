"""The objects of a cluster as plain values: Jobs, pods, volumes, waves, site profiles, campaigns.

Pure; `--dry-run` prints them.
"""
