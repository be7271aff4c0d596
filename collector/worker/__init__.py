"""The worker of one shard: it measures the cases, stores each session's part, commits the shard."""
