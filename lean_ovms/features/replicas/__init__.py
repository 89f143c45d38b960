"""Replicas of an engine: several processes that compute the same model, of which each request uses one."""
