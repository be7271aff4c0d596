"""The time of a pass: a simulation of its host, its streams and its messages. Pure."""
