"""Clusters that stay long, and then merge (arXiv 2410.06833, 2410.23228)."""
