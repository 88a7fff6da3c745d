"""What would fail, or silently go wrong, in fairseq's commands: refused, or told in a sentence.

When one of fairseq's commands imports the package, `start.start` gets its command line, and
`command_line` reads it as fairseq will. The other modules each know one kind of mistake:

- `missing`: no data, dictionary or size of a batch, or what only the user can say.
- `checks`: flags that do not go together.
- `gpus`, `ranks`: what the GPUs here cannot do, and processes that would not find each other.
- `restored_parameters`, `restored_optimizer`: a checkpoint of another network, or training.
- `binarised`, `samples`, `labelled`: data that were cut short, are too little, or have no labels.
- `save_folder`: two training runs in one folder.
- `batches`: batches that do not fit, into memory or into --max-tokens.

A new check goes into the module of its mistake. Its test shows what fairseq does without it.
"""
