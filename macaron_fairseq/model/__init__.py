"""The network: a scheme as data, layers that integrate it, the model, its names and its loss."""
