"""Splitting schemes and sub-steps as data."""
