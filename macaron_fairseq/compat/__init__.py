"""fairseq as the host: what is looked at before it parses, and the checkpoints that it writes."""
