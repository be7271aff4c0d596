"""Sums of each channel of a batch of images, and of their squares."""

from collector.ops.catalog.vision._batch_norm import forward, train

OP = forward("BNTrainingReduce", (), (False, False), 3, lambda norm, *args: train(norm, *args)[1:])
