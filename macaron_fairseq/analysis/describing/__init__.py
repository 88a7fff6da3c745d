"""A model's layers as formulas, with parameters and operations (`macaron-fairseq describe`)."""
