"""What all rooms need: errors, names, files and locks, the machine, processes, Markdown and HTML."""
