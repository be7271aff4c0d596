"""The campaign file and its target. Pure, but for asking this machine for its stack."""
