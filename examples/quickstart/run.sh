#!/usr/bin/env bash
# Macaron Net and a Transformer of equal size, on a small corpus made on the spot.
#
#   needs   2 CPU cores, 3 GB of memory, 5 to 10 minutes (or a GPU)
#   prints  BLEU and chrF of both, and commands to go on with
#   leaves  runs/quickstart: report/, checkpoints, the data
#
#   --setting demo    longer and with fewer merges: the models that come with the package (make_demo.sh)
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../recipe.py" "$here/${0##*/}" "$@"
