"""What would fail, or silently go wrong, in fairseq's commands: refused, or told in a sentence."""
