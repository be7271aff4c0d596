"""Cases from a model's name: the kernels of its step, with their shapes and counts."""
