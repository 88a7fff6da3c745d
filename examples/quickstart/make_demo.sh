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
root=$(dirname "$(dirname "$here")")
folder=${1:-$root/macaron_fairseq/demo}
case $folder in
  -h | --help) sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0" && exit ;;
  -*)
    printf 'make_demo: the folder comes before %s; see --help\n' "$folder" >&2
    exit 1
    ;;
esac
for word in "${@:2}"; do # what is packed is one pair of trained models, from one folder
  case $word in
    --) break ;;
    --work* | --setting* | --archs* | --seeds* | prepare | train | evaluate | report)
      printf 'make_demo: %s is not among the options; see --help\n' "$word" >&2
      exit 1
      ;;
  esac
done
"$here/run.sh" --setting demo --work "$root/runs/quickstart-demo" "${@:2}"
exec python3 -X utf8 "$here/../start.py" "$here/pack_demo.py" "$root/runs/quickstart-demo" "$folder"
