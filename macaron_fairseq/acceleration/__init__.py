"""The results of fairseq with less work: attention, dropout, caches of decoding, beam search."""
