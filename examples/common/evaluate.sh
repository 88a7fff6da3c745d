# The stage evaluate: average, decode every test set, score.
# shellcheck shell=bash disable=SC2154

stage_evaluate() {
  local arch seed run device=()
  need_data
  if [[ $cpu ]] || ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    device=(--cpu)
  elif [[ $precision == fp16 ]]; then
    device=(--fp16) # fairseq-generate knows no bf16, and then computes in fp32
  fi
  for arch in "${archs[@]}"; do
    for seed in "${seeds[@]}"; do evaluate_one "$work/$arch/seed$seed"; done
  done
}

evaluate_one() { # RUN
  local run=$1 checkpoint=checkpoint_best.pt decoding="the best checkpoint" own checksum last epochs i
  check_data "$run"
  hold "$run/evaluation.lock"
  own=$(what_evaluates)
  if ((average)); then
    mapfile -t epochs < <(cd "$run" && find . -maxdepth 1 -name 'checkpoint[0-9]*.pt' | sort -V)
    ((${#epochs[@]} >= average)) || die "$run holds ${#epochs[@]} checkpoints of epochs, and $average" \
      "are to be averaged: give --average ${#epochs[@]}, or train longer"
    epochs=("${epochs[@]: -average}")
    step "$run/averaged" "$own $(cd "$run" && stat -c '%n %s %Y' "${epochs[@]}")" averaged "${epochs[@]}"
    checkpoint=averaged/checkpoint.pt decoding="the mean of the last $average checkpoints"
  fi
  [[ -f $run/$checkpoint ]] || die "$run holds no $checkpoint: run the stage train first"
  checksum=$(sha256sum < "$run/$checkpoint" | cut -d ' ' -f 1)
  last=$({ cat "$run/checkpoint_last.pt" 2> /dev/null || true; } | sha256sum | cut -d ' ' -f 1)
  if [[ ! -f $run/trained ]]; then
    say "$run has not been trained to its end: scoring what there is"
    decoding+=" of an unfinished training"
  fi
  decoding+=", ${decode[*]}"
  [[ ${device[*]} != --fp16 ]] || decoding+=" --fp16"
  for i in "${!tests[@]}"; do
    step "$run/${tests[i]}" "$own $checksum $(< "$data/made-from") $decoding ${metrics[*]} ${device[*]}" \
      decoded "$checkpoint" "$checksum" "$decoding" "${tests[i]}" "test${i#0}"
    echo "$last" > "$run/${tests[i]}/last.sha256" # what the report wants to find there still
    say "${run#"$work"/}, ${tests[i]}:"
    cat "$run/${tests[i]}/scores.txt"
  done
  release
}

what_evaluates() {
  version sacrebleu
  version sacremoses
  (LC_ALL=C && cd "$plugin" && code {schemes,model,fast,text,evaluation}/*.py {common/workers,commands/score}.py)
}

# What was trained on other data must not be scored with this.
check_data() { # RUN
  local trained_on
  [[ -f $1/manifest.json ]] || die "$1 was not trained: run the stage train first"
  trained_on=$(fingerprint)
  grep -qF "\"$trained_on\"" "$1/manifest.json" \
    || die "$1 was trained on other data than $data holds now: train again in another --work, or remove it"
}

# What follows names files in the run's folder, which holds OUT: the folder may be moved.

averaged() { # CHECKPOINT... OUT
  local out=${*: -1}
  (cd "$out/.." && macaron-fairseq average "${@:1:$#-1}" -o "$out/checkpoint.pt")
}

decoded() { # CHECKPOINT CHECKSUM DECODING TEST SUBSET OUT
  local out=$6 reference=$4.$target
  say "translating $4"
  # All sentences: fairseq drops a last batch whose size is no multiple of 8 unless told otherwise.
  logged "$out/generate.log" fairseq-generate "$data/data-bin" --user-dir "$plugin" --path "$out/../$1" \
    --task macaron_translation --gen-subset "$5" --required-batch-size-multiple 1 \
    --post-process subword_nmt "${decode[@]}" "${device[@]}" > "$out/generated.txt"
  echo "$2" > "$out/checkpoint.sha256"
  echo "$3" > "$out/decoding"
  macaron-fairseq score "$out/generated.txt" --target-lang "$target" --test "$4" "${metrics[@]}" \
    --reference "$data/reference/$reference" --tokenized-reference "$data/tokenized/$reference" \
    --hypotheses "$out/hypotheses.txt" --json "$out/scores.json" > "$out/scores.txt"
}
