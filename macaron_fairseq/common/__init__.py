"""What all other rooms use: errors, files, names, the environment, worker processes."""
