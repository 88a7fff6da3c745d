"""Trained models layer by layer: measures, tables, and the page (`macaron-fairseq dynamics`)."""
