"""fairseq's faults, each with its sentence and the day it can go; safe loading of checkpoints."""
