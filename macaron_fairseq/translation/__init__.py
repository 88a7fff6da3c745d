"""Raw text in, raw text out, with trained models (`macaron-fairseq translate`)."""
