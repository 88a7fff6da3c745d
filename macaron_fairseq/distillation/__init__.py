"""Small models that learn from large ones: teachers, and what a student's loss has from them."""
