"""Quantisation to INT8 and back, in kernels that contain no product or norm."""
