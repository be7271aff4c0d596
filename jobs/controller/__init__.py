"""Look, observe, act, look again: everything that has an effect on a cluster."""
