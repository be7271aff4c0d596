"""One shard, end to end: measure its cases, upload each session's part, commit the shard."""
