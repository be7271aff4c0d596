"""Products of matrices: single, in batches, by heads, by expert, and of INT8."""
