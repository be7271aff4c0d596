"""The controller: everything that changes the state of a cluster."""
