"""The network: layers that integrate a scheme, the model, its names, arguments and checkpoints.

Read `layers` first: it applies the steps of a scheme to the networks that `operators` builds. Then
`transformer`, `language_model` and `masked_language_model`, which put these layers into fairseq's
models; `base` is what they share. `arguments` has their flags, and `architectures` their names and
sizes. `incremental`, `initialization` and `bf16` are parts of them.

Of checkpoints: `loading` reads trained models, `averaging` averages them, and `checkpoint_sizes`
and `same_network` compare them with a model. `released` and `released_bert` know those of the
authors' code.
"""
