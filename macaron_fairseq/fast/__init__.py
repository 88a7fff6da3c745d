"""The same results in less time and memory: subclasses of `model/` and of fairseq's classes.

- Layers: `layers`, of `attention`, `dropout`, `dropout_loops`, `linear`, `activation` and, on a
  GPU, `gpu_kernels`. `replaceable` says where they may stand for fairseq's, and `transformer` puts
  them into models.
- Losses: the criteria `criterion`, `masked_lm_criterion` and `rdrop_criterion`. Their mathematics
  is in `chunked_loss` and `linear_gradients`. `chunked_sum` takes any other loss of logits.
- Translation: `task` and its `beam_search`, what that keeps (`caches`), and processes (`parallel`).
- Adam: `optimizer`.

CONTRIBUTING.md says how a part is measured, and when it goes.
"""
