"""What the benchmarks share: corpora, processes and their memory, figures and tables."""
