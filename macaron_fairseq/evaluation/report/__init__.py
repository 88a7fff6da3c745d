"""Runs of one corpus compared: tables, text and page."""

TITLE = "Comparison of architectures"
