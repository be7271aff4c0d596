"""Replaces CANN's pyACL, of which an engine uses one function, to save its memory while idle."""
