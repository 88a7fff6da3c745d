"""How fairseq's checkpoints are read; and its faults, with the tests that tell what can go."""
