"""What everything stands on: errors, files, names, the environment, worker processes."""
