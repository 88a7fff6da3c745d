"""What the benchmarks share: corpora, processes and their memory, figures and tables."""

import logging

from macaron_fairseq.compat import quiet

logging.getLogger(quiet.ASKS).setLevel(logging.WARNING)  # fairseq asks for tensorboardX
