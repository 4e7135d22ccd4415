"""Answers over files: the service's own jobs, shard by shard, on one machine or on a Ray cluster."""
