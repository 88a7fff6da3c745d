#!/usr/bin/env bash
# What does a small model learn from a large one? A teacher, then students that learn in several ways:
# trained, scored, exported, timed and compared.
#
#   needs   4 GB of memory a run at a time, a GPU or patience: the teacher takes hours on a CPU, a student one
#           or more; the data in folders of --from; pip install ctranslate2 matplotlib rapidfuzz
#   prints  a line for each finished run, and at the end the table; it may be stopped and started again
#   leaves  in --work, for each task: results/SYSTEM-seedN.json, distilled/ (the teacher's translations), report/
#   systems distillation.yaml: none (no teacher), word, sequence, both, trajectory, none-own-bpe, across,
#           uld, mined
#
#   reproduce.sh --from data --seeds "1 2 3"                       Multi30k and Tatoeba, English to German
#   reproduce.sh --from data --tasks tatoeba-en-de --systems "none sequence" --cpu --jobs 2
#   reproduce.sh --from data --seeds "1 2 3" --records ~/records    keeps what is done, for another machine
#   reproduce.sh report --seeds "1 2 3"                            the table of what is done so far
#   reproduce.sh --from data --seeds "1 2 3" --shards 8 --jobs 8 --launcher slurm --slurm slurm_partition=gpu
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" > /dev/null && pwd)
exec python3 -X utf8 "$here/teach.py" "$@"
