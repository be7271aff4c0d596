"""Image operators: convolutions, pooling, and the blocked layouts of their tensors."""
