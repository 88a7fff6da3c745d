#!/usr/bin/env bash
# All splitting schemes beside the Transformer of equal size, on the corpus of the quickstart.
#
#   needs   what the quickstart needs, and its time again for each variant and seed; those that
#           evaluate an operator several times take as many times longer
#   prints  BLEU, loss, words/s and operations of each, mean and deviation over seeds
#   leaves  runs/schemes: table.md, table.json, a folder for each variant
#
#   run.sh [--seeds "1 2 3"] [--variants "parallel yoshida4/midpoint"] [--work FOLDER] [-- FLAG...]
#
# A variant is SCHEME or SCHEME/SUBSTEP, "baseline" fairseq's transformer. Flags after -- are those of
# the quickstart (--max-update 100, --cpu ...). Interrupted? Run the same command again.
set -euo pipefail
unset CDPATH # with which cd prints, and may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
quickstart=$here/../quickstart/run.sh
seeds="1 2 3"
work=$here/../../runs/schemes
variants="baseline lie-trotter-reversed strang-marchuk strang-marchuk-attention strang-symmetric parallel
  yoshida4 strang-symmetric/midpoint parallel/midpoint parallel/rk4 parallel/gated-rk2 yoshida4/midpoint"

die() {
  printf 'schemes: %s\n' "$*" >&2
  exit 1
}

main() {
  while (($#)); do
    case $1 in
      -h | --help) sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0" && exit ;;
      --) shift && break ;;
      --seeds | --variants | --work)
        [[ ${2:-} && $2 != --* ]] || die "$1 needs a value; see --help"
        declare -g "${1#--}=$2"
        shift
        ;;
      *) die "$1 is no option; see --help" ;;
    esac
    shift
  done
  local variant folder arch steps folders=()
  mkdir -p "$work"
  work=$(cd "$work" && pwd)
  "$quickstart" prepare --work "$work/corpus"
  for variant in $variants; do
    folder=$work/${variant/\//-} arch=macaron_transformer_tiny
    steps=(--macaron-scheme "${variant%/*}")
    [[ $variant != */* ]] || steps+=(--macaron-substep "${variant#*/}")
    [[ $variant != baseline ]] || arch=transformer_tiny_pre_norm steps=()
    mkdir -p "$folder"
    ln -sfn ../corpus/data "$folder/data"
    printf 'schemes: %s\n' "$variant"
    options "$@"
    "$quickstart" train evaluate --work "$folder" --archs "$arch" --seeds "$seeds" \
      "${before[@]}" -- "${steps[@]}" "${after[@]}"
    folders+=("$variant=$folder/$arch")
  done
  python3 "$here/table.py" "${folders[@]}" --seeds "$seeds" -o "$work"
}

# Of what follows --, options of the quickstart come before its own --, flags of fairseq-train after.
options() { # FLAG...
  before=() after=()
  while (($#)); do
    if [[ $1 == -- ]]; then
      after=("${@:2}")
      break
    fi
    before+=("$1")
    shift
  done
}

{ main "$@"; exit; } # read whole, so that an edit does not disturb a run
