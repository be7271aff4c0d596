"""Elements and rows selected by indices: looked up, written, added, or found."""
