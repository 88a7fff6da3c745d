#!/usr/bin/env bash
# Does the order of the operators matter, and for whom? Tasks x schemes x seeds: trained, scored and compared.
#
#   needs   one CPU core and 2 GB of memory a run at a time; the data in folders of --from, or for
#           grapheme-to-phoneme and Multi30k the network. A run of the former takes minutes, the others hours
#   prints  a line for each finished run, and at the end the table; it may be stopped and started again
#   leaves  in --work: records/TASK/SCHEME-seedN.json of each finished run, report/, logs/
#   plan    plan.md, written before the first scored run: tasks, seeds, tests, thresholds
#
#   reproduce.sh --tasks "g2p-ice g2p-hun" --seeds "1 2 3" --from data --cpu --jobs 2
#   reproduce.sh tune --tasks g2p --from data --cpu         what is tuned, on dev sets alone
#   reproduce.sh report --tasks g2p                         the table of what is done so far
#   reproduce.sh --tasks g2p --records docs/results/records   keeps what is done; what stands there is not made again
#   reproduce.sh --tasks "g2p multi30k" --seeds "1 2 3 4 5" --jobs 20 --launcher slurm \
#     --slurm slurm_partition=gpu gpus_per_node=1
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../start.py" "$here/many_tasks.py" "$@"
