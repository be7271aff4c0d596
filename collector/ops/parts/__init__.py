"""Shared code of several operator families; code of one family is in that family's package."""
