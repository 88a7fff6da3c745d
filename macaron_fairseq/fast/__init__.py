"""The same results with less work."""
