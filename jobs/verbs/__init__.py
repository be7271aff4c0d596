"""The bodies of the verbs, each loaded when it is called: the command itself stays quick."""
