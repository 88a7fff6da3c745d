"""Trained models in other programs' formats (`macaron-fairseq export`)."""
