"""The ideal systems of particles on the sphere, simulated (`macaron-fairseq particles`)."""
