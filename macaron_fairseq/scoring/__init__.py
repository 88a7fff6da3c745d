"""From what fairseq printed to scores: hypotheses in order, then metrics."""
