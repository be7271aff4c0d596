"""What the numbers of a database say of something else that was measured."""
