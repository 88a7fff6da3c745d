#!/usr/bin/env bash
# Makes macaron_fairseq/demo: the trained pair that `macaron-fairseq demo` translates with.
#
#   needs   2 CPU cores, 3 GB of memory
#   leaves  runs/quickstart-demo, as run.sh does; and of that in FOLDER both models in fp16, BPE merges,
#           dictionaries, some phrases of the test set, and about.json
#
#   make_demo.sh                      FOLDER is macaron_fairseq/demo
#   make_demo.sh FOLDER [OPTION...]   options of run.sh, but for --work, --setting, --archs, --seeds and stages
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../start.py" "$here/make_demo.py" "$@"
