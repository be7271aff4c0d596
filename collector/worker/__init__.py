"""Process of one shard: it measures the cases, uploads the part of each session, commits the
shard."""
