"""Elements and rows that indices name: looked up, written, added, or found."""
