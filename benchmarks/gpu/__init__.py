"""What `gpu_check.py` checks, a subject in each file."""

import harness as harness  # fairseq, which comes next, is quiet then
