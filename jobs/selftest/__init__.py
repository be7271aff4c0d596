"""Whether what is measured on this machine can be believed: a check a lie."""
