"""Trajectory: the layers of a student follow those of its teacher."""
