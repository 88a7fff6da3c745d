"""The same results in less time and memory: subclasses of `model/` and of fairseq's classes."""
