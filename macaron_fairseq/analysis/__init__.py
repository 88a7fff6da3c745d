"""Trained models and ideal systems as dynamics: layers as time, tokens as particles.

To look at a trained model along its layers: `models.load` it, `sentences.read` what it is to read,
and `trajectories.run` it. A layer then has its sub-layers, each with the state before it and with
what it adds, as a function of the state: `jacobians` and `local_error` take such functions, and
`measures` the states. `dynamics` and `order` put all that together.
"""
