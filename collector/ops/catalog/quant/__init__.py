"""Numbers to INT8 and back, where no product or norm is in the same kernel."""
