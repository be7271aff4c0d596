"""What knows Ascend: cases, operators, replay, profiles and the versioned database."""

__version__ = "0.1.0"
