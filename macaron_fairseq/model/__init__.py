"""The network: layers that integrate a scheme, the model, its names, arguments and checkpoints."""
