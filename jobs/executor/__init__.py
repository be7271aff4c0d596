"""What runs shards: processes on this machine, and process 1 of a pod."""
