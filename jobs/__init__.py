"""What knows the order of work: campaigns, plans, the local executor and the command line."""
