"""Metrics of translations, their failures, their intervals and tests."""
