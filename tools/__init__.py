"""What makes the data of the package. It is not part of the wheel, and the product imports none of
it."""
