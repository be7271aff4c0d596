"""What a cluster is given, as plain values: Jobs, pods, volumes, waves, site profiles, applied
campaigns. Pure: what `--dry-run` prints.
"""
