"""Small models that learn from large ones: teachers, and what a student's loss has from them.

- Teachers: `teacher_files` loads them, and `teacher_fit` refuses those that do not go with the
  student. `teachers` runs them, and `teacher_memory` keeps what they said.
- Word level and trajectories are one criterion, `criterion`. `word_level` has its loss for each
  token. `trajectory` has that of `layers`, which `layer_plan` pairs, `spans` and `text_spans`
  divide, and `maps` map.
- `cross_vocabulary`: the criterion, and its losses, for a teacher with other tokens.
- `student_criterion` is what both criteria share.
- `sequence_level` makes a training set of a teacher's translations; there is no loss in it.

A loss of logits that autograd can differentiate needs `fast.chunked_sum` and no more. Word level
has its gradients by hand, in `word_level.DistilledLoss`.
"""
