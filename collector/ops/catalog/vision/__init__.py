"""Images: convolutions, pooling, and the blocks that their tensors are laid out in."""
