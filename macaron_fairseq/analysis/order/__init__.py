"""The order of schemes and sub-steps, from the errors of single steps (`macaron-fairseq order`).

Of toy systems, whose flow is known, and of a trained model's layers.
"""
