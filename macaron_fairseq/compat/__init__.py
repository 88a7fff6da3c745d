"""fairseq's faults: each in one place, with the test that tells when its remedy can go."""
