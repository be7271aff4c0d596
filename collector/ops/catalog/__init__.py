"""The operators, one a file, in families that do not know each other."""
