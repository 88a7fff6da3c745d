"""A trained model as a system of particles: measures of its states, layer by layer."""
