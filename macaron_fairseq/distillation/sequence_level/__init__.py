"""Sequence level: a training set whose targets a teacher has translated."""
