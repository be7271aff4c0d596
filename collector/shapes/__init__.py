"""Cases from a model's name: what its step launches, with which shapes, how often."""
