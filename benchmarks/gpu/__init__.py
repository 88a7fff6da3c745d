"""What `gpu_check.py` checks, a subject in each file."""
