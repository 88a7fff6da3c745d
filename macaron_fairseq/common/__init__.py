"""What all rooms use: errors, names, files, locks, the machine, processes, Markdown and HTML."""
