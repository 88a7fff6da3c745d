"""Trained models and ideal systems as dynamics: layers as time, tokens as particles.

Each folder is one question: `dynamics` a model layer by layer, `residual` along its whole depth,
`order` the order of schemes, `particles` ideal systems. Most modules here are their common tools.
Four answer questions of other commands: `description` and `flops` say what a layer computes and
costs, `trainers` and `batch_sizes` how large a batch may be.

Data passes through four hands. `models.load` loads trained models, `sentences.read` what they are
to read; `dynamics.measurement`, `order` or a function of yours measures; `output.write` writes.

To look at a model along its layers, `trajectories.run` it on a sentence: each `Layer` has its
sub-layers, and each of these the state before it and what it adds as a function of the state.
`jacobians` and `local_error` take such functions, `measures` the states.

- A measure along the layers: compute it in `dynamics.measurement`, in `add_state`, `add_states` or
  `add_jacobian`, and say in `dynamics.glossary` what it is; page and tables then show it.
- A kind of model: `anatomy` says where its layers are, `models.load_one` and `trajectories.run` how
  it is loaded and run.
- A map of single tokens (attention, cosines): `dynamics.sentence_views`, one `SideView` a side.
- A figure: `figures` draws lines and distributions as PNG or SVG, `common.html_page` holds the
  parts of a page, `dynamics.page` puts them together. Its script draws from the JSON next to each.
- An ideal system, or an experiment with one: see `particles`.
"""

# How many sentences are read and, of these, have Jacobians, where nothing else is asked for.
SENTENCES, JACOBIAN_SENTENCES = 200, 16
