"""Trained models and ideal systems as dynamics."""
