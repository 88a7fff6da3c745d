#!/usr/bin/env bash
# Train, decode and score several architectures on the same data with the same flags.
#
#   compare.sh DATA OUT "ARCH..." FLAG...
#
# DATA is what prepare.sh made; the flags go to fairseq-train as they are. OUT/ARCH gets the
# checkpoints, train.log and the hypotheses; OUT gets table.md, results.json and curves.png.
# Run it again to go on after an interruption: finished work is kept, training resumes.
#
#   AVERAGE=N   decode with the mean of the last N checkpoints instead of the best one
#   DECODE=...  flags of fairseq-generate (default: --beam 5 --batch-size 64)
#   REPORT=...  flags of report.py
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage='usage: compare.sh DATA OUT "ARCH..." FLAG...'
data=${1:?$usage} out=${2:?$usage}
read -r -a archs <<< "${3:?$usage}"
shift 3
read -r -a decode <<< "${DECODE:---beam 5 --batch-size 64}"
read -r -a report <<< "${REPORT:-}"

[[ -f $data/made-from ]] || { echo "compare.sh: $data was not made by prepare.sh" >&2; exit 1; }
user_dir=$(macaron-fairseq user-dir)
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  device=() precision=(--fp16)
else
  device=(--cpu) precision=()
fi
# Huge pages for large tensors: far fewer page faults on a CPU.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}

loads() { # CHECKPOINT
  python3 -c 'import sys; from pathlib import Path; from macaron_fairseq import checkpoints
checkpoints.load(Path(sys.argv[1]))' "$1" 2> /dev/null
}

for arch in "${archs[@]}"; do
  run=$out/$arch
  mkdir -p "$run"
  asked="$(< "$data/made-from") $* ${device[*]} ${precision[*]}"
  if [[ -f $run/asked && $(< "$run/asked") != "$asked" ]]; then
    echo "compare.sh: $run was trained with other flags or data: remove it or choose another folder" >&2
    exit 1
  fi
  echo "$asked" > "$run/asked"

  if [[ ! -f $run/trained ]]; then
    # fairseq writes this one by copying: a kill in that moment leaves half of it.
    last=$run/checkpoint_last.pt best=$run/checkpoint_best.pt
    if [[ -f $last ]] && ! loads "$last"; then
      echo "$arch: $last was cut short; going on from the best checkpoint, or from the start"
      rm "$last"
      if loads "$best"; then cp "$best" "$last.part" && mv "$last.part" "$last"; fi
    fi
    fairseq-train "$data/data-bin" --user-dir "$user_dir" --arch "$arch" --save-dir "$run" \
      --log-format json --log-interval 10 "${device[@]}" "${precision[@]}" "$@" 2>&1 \
      | python3 "$here/progress.py" "$arch" "$run/train.log"
    touch "$run/trained"
  fi

  decoding="${decode[*]} ${AVERAGE:-}"
  if [[ ! -f $run/hypotheses || $(< "$run/decoded-with") != "$decoding" ]]; then
    rm -f "$run/hypotheses"
    echo "$decoding" > "$run/decoded-with"
    checkpoint=$run/checkpoint_best.pt
    if [[ ${AVERAGE:-} ]]; then
      checkpoint=$run/averaged.pt
      macaron-fairseq average "$run" --last "$AVERAGE" -o "$checkpoint"
    fi
    echo "$arch: decoding"
    # All sentences: fairseq drops a last batch whose size is no multiple of 8 unless told otherwise.
    fairseq-generate "$data/data-bin" --user-dir "$user_dir" --path "$checkpoint" \
      --required-batch-size-multiple 1 --post-process subword_nmt \
      "${decode[@]}" "${device[@]}" "${precision[@]}" > "$run/hypotheses.part" 2> "$run/generate.log" \
      || { tail -n 20 "$run/generate.log" >&2; exit 1; }
    mv "$run/hypotheses.part" "$run/hypotheses"
  fi
done
python3 "$here/report.py" "$data" "$out" "${archs[@]}" "${report[@]}"
