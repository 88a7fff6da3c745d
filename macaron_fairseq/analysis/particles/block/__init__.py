"""What a perceptron block changes: where particles end, how fast (arXiv 2601.21366)."""
