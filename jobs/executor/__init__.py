"""The execution of shards: in processes on this machine, and as process 1 of a pod."""
