#!/usr/bin/env bash
# What does a small model learn from a large one? A teacher, then students that learn in several ways:
# trained, scored, exported, timed and compared.
#
#   needs   8 GB of memory a run at a time, half of it for what the teacher says; the data in folders of --from;
#           a GPU, or the hours below; 6 GB of disk for each teacher, whose last epochs are kept with the
#           optimizer's state (12 bytes a parameter), and 0.5 GB for each student; pip install
#           -e '.[distillation]'
#   costs   on one CPU core, with 4,096 tokens an update, estimated from docs/results/speed.md:
#             teacher                         7 s an update     at most 78 h for 40,000 updates
#             none, sequence, none-own-bpe    0.8 s             0.9 h for 4,000
#             word, both                      1.2 s             1.3 h
#             trajectory                      1.5 s             2.4 h of Multi30k, 2.9 h of Tatoeba
#             across                          1.2 s             1.3 h of Multi30k, 2.1 h of Tatoeba
#             uld                             2.3 s             2.6 h
#             mined                           1.4 s             1.5 h
#           So it is once the memory knows what the teacher says. The first epoch takes two to three times as long, and so
#           does what the memory does not hold: of trajectory two fifths of Multi30k's batches and three quarters of
#           Tatoeba's, of across a third of Tatoeba's. sequence and both also wait for the translations of the training set, some 20 and 60
#           minutes. --patience ends a teacher earlier. --student-updates and --max-update end runs where you say.
#   prints  a line for each finished run, and at the end the table; it may be stopped and started again
#   leaves  in --work, for each task: results/SYSTEM-seedN.json, distilled/ (the teacher's translations), report/
#   systems distillation.yaml: none (no teacher), word, sequence, both, trajectory, none-own-bpe, across,
#           uld, mined
#
#   reproduce.sh --tasks multi30k-en-de --seeds "1 2 3"            Multi30k, which is fetched
#   reproduce.sh --from data --seeds "1 2 3"                       and Tatoeba, from data/multi30k and data/tatoeba
#   reproduce.sh --tasks multi30k-en-de --systems "word sequence trajectory across" --seeds "1 2 3" \
#     --settings examples/distillation/pair.yaml --cpu --jobs 2 --work runs/pair    the plan's small pair
#   reproduce.sh --from data --tasks tatoeba-en-de --systems "none sequence" --cpu --jobs 2
#   reproduce.sh --from data --seeds "1 2 3" --records ~/records   keeps what is done, for another machine
#   reproduce.sh --from data --student-updates 9000                students have 9,000 updates, the teacher as before
#   reproduce.sh --from data --tasks multi30k-en-de --teacher teacher/checkpoint.pt   it is there already
#   reproduce.sh report --seeds "1 2 3"                            the table of what is done so far
#   reproduce.sh --from data --seeds "1 2 3" --shards 8 --jobs 8 --launcher slurm \
#     --slurm slurm_partition=gpu gpus_per_node=1
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../start.py" "$here/distillation_recipe.py" "$@"
