#!/usr/bin/env bash
# Makes macaron_fairseq/demo: the trained pair that `macaron-fairseq demo` translates with.
#
#   needs   2 CPU cores, 3 GB of memory
#   leaves  runs/quickstart-demo, as run.sh does; and of that in macaron_fairseq/demo both models in
#           fp16, BPE merges, dictionaries, some phrases of the test set, and about.json
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" > /dev/null && pwd)
root=$(dirname "$(dirname "$here")")
"$here/run.sh" --setting demo
exec python3 -X utf8 "$here/pack_demo.py" "$root/runs/quickstart-demo" "$root/macaron_fairseq/demo"
