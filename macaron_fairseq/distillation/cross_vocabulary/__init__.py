"""Across vocabularies: a student learns from a teacher with other tokens."""
