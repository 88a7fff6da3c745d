"""What all rooms use: errors, names, words, files, locks, the machine, processes, pages."""
