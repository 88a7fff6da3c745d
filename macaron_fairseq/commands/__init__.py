"""The command line: a module for each `macaron-fairseq NAME`."""
