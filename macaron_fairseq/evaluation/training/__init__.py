"""What a training run left behind: its manifest, flags, log and folder."""
