"""Runs over many tasks compared by a plan: records, statistics, report."""
