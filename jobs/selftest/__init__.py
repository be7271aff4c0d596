"""Self-tests of the durations measured on this machine: one check per kind of error."""
