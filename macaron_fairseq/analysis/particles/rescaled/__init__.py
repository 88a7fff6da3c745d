"""Tokens without a sphere, rescaled: polytopes, hyperplanes, leaders (arXiv 2305.05465)."""
