"""The order of splitting schemes and sub-steps, measured (`macaron-fairseq order`)."""
