"""decide(desired, observed) -> actions, and what it is made of. Pure."""
