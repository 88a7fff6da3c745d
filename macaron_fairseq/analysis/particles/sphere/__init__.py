"""Self-attention on the unit sphere: clusters, phase diagrams (arXiv 2312.10794)."""
