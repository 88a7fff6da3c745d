"""The ideal systems of particles, simulated (`macaron-fairseq particles`).

Each folder is a question, with the papers that ask it: `sphere`, `block`, `rescaled` and
`metastability`. There `run` takes an experiment's parameters and returns its `outcome.Outcome`,
`figures` draws it, and the other modules compute its numbers. Some have more views: pages, movies.

All of them share the equations (`systems`) and how particles move (`simulation`). `settings` reads
parameters and has their limits; `drawing` and `movies` are for pictures.

A new experiment is named in `choices`, with its defaults, and in the EXPERIMENTS of a folder's
`run`. `run.run` writes its files, and the command knows it.
"""
