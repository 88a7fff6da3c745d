"""What would fail, or silently go wrong, in a command of fairseq's: refused before it starts."""
