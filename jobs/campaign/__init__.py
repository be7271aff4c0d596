"""The campaign file and its target. Pure, except for reading this machine's stack."""
