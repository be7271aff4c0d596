"""Which kernel each recorded call launches, by families; read by `collector.recording.kernels`."""
