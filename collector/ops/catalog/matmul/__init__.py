"""Products of matrices: one, in batches, by heads, by expert, and of INT8."""
