#!/usr/bin/env bash
# All splitting schemes and the Transformer of equal size, on the quickstart's corpus or on Multi30k.
#
#   needs   what the recipe of that corpus needs, and its time again for each variant and seed (with
#           Multi30k days on a CPU); those that evaluate an operator several times take as many times longer
#   prints  scores, loss, words/s and operations of each, mean and deviation over seeds
#   leaves  runs/schemes or runs/schemes-multi30k: table.md, table.json, a folder for each variant
#
#   run.sh [--recipe quickstart|multi30k] [--seeds "1 2 3"] [--variants "parallel yoshida4/midpoint"]
#          [--work FOLDER] [-- OPTION...]
#
# A variant is SCHEME or SCHEME/SUBSTEP, "baseline" fairseq's transformer. What follows -- are options
# of the recipe (--cpu, or --max-update 100 --average 0 ...). Interrupted? Run the same command again.
set -euo pipefail
unset CDPATH # with which cd prints, and may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=quickstart
seeds="1 2 3"
work=""
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
      --recipe | --seeds | --variants | --work)
        [[ ${2:-} && $2 != --* ]] || die "$1 needs a value; see --help"
        declare -g "${1#--}=$2"
        shift
        ;;
      *) die "$1 is no option; options of the recipe follow a word --; see --help" ;;
    esac
    shift
  done
  local run variant folder arch steps word folders=() archs=()
  case $recipe in
    quickstart) run=$here/../quickstart/run.sh work=${work:-$here/../../runs/schemes} ;;
    multi30k) run=$here/../multi30k/reproduce.sh work=${work:-$here/../../runs/schemes-multi30k} ;;
    *) die "the recipes are quickstart and multi30k, not $recipe" ;;
  esac
  mkdir -p "$work"
  work=$(cd "$work" && pwd)
  options "$@"
  for word in --dry-run --work --archs --seeds; do
    [[ " ${before[*]}" != *" $word"[\ =]* && " ${before[*]}" != *" $word" ]] ||
      die "$word is no option after --; see --help"
  done
  for variant in $variants; do
    [[ $variant == baseline ]] || archs+=("macaron_transformer_tiny/$variant")
  done
  # What cannot be trained is said before anything is.
  "$run" --dry-run --archs "${archs[*]:-transformer_tiny_pre_norm}" --seeds "$seeds" "${before[@]}" \
    -- "${after[@]}" > /dev/null
  # In the folder of all runs, so that what they were trained on is not replaced.
  "$run" prepare "${before[@]}" --work "$work"
  for variant in $variants; do
    folder=$work/${variant/\//-} arch=macaron_transformer_tiny
    steps=(--macaron-scheme "${variant%/*}")
    [[ $variant != */* ]] || steps+=(--macaron-substep "${variant#*/}")
    [[ $variant != baseline ]] || arch=transformer_tiny_pre_norm steps=()
    mkdir -p "$folder"
    ln -sfn ../data "$folder/data"
    printf 'schemes: %s\n' "$variant"
    "$run" train evaluate "${before[@]}" --work "$folder" --archs "$arch" --seeds "$seeds" \
      -- "${steps[@]}" "${after[@]}"
    folders+=("$variant=$folder/$arch")
  done
  python3 -X utf8 "$here/../start.py" "$here/table.py" "${folders[@]}" --seeds "$seeds" -o "$work"
}

# Of what follows --, options of the recipe come before its own --, flags of fairseq-train after.
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
