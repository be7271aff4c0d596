"""A device of torch that has events and nothing else: PrivateUse1, computed by the CPU."""
