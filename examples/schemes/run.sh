#!/usr/bin/env bash
# All splitting schemes and the Transformer of equal size, on the quickstart's corpus or on Multi30k.
#
#   needs   what the recipe of that corpus needs, and its time again for each variant and seed (with
#           Multi30k days on a CPU); those that evaluate an operator several times take as many times longer
#   prints  scores, loss, words/s and operations of each, mean and deviation over seeds
#   leaves  runs/schemes or runs/schemes-multi30k: table.md, table.json, and a folder for each run
#
# A variant is SCHEME or SCHEME/SUBSTEP, "baseline" fairseq's transformer. What follows -- are options
# of the recipe (--cpu, or --max-update 100 --average 0 ...). Interrupted? Run the same command again.
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../start.py" "$here/schemes.py" "$@"
