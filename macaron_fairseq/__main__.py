"""`python -m macaron_fairseq` is the command `macaron-fairseq`."""

from macaron_fairseq.cli import main

main()
