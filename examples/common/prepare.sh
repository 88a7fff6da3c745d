# The stage prepare: from the archives to what fairseq trains on.
#   downloads   the archives and their checksums
#   prepare     a folder for each step
#   data        data-bin, BPE code, references, preprocessing.json
# shellcheck shell=bash disable=SC2154

stage_prepare() {
  local done=$work/prepare checksums extracts tokenizes cleans describes sacremoses bpe
  hold "$work/prepare.lock"
  case $target in
    ja | ko)
      python3 -c "from sacrebleu.metrics import BLEU; BLEU(trg_lang='$target')" 2> /dev/null \
        || die "sacreBLEU cannot split $target into words: pip install 'sacrebleu[$target]'"
      ;;
  esac
  [[ $from ]] || need curl
  # Assigned one by one: a failure inside an argument would go unnoticed.
  checksums=$(inputs)
  extracts=$(code "$common"/{aligned,extract,hold_out}.py)
  tokenizes=$(code "$plugin"/{common/files,text/pipeline,common/workers,commands/tokenize}.py)
  cleans=$(code "$common"/{aligned,clean,split}.py)
  describes=$(code "$common/describe.py")
  sacremoses=$(version sacremoses)
  bpe=$(version subword-nmt)
  step "$done/raw" "$source $target $checksums $extracts" raw
  step "$done/tokenized" "$(made raw) $tokenizes $sacremoses" tokenized "$source" "$target" "$steps"
  step "$done/clean" "$(made tokenized) $cleans ${sizes[*]}" cleaned "$clean" "$valid_every"
  step "$done/code" "$(made clean) $bpe" learned "$merges"
  step "$done/bpe" "$(made code)" segmented
  step "$data" "$(made bpe) $describes" binarised
  release
  say "$data is ready: $(wc -l < "$data/data-bin/dict.$source.txt") types"
}

made() { cat "$done/$1/made-from"; } # STEP

fetch() { # ARCHIVE ADDRESS...; prints its checksum
  local known="" sums
  sums=$(dirname "$0")/SHA256SUMS # of archives whose checksum is known
  [[ ! ${sizes[*]} || ! -f $sums ]] || known=$(sed -n "s/  ${1//./\\.}\$//p" "$sums")
  mkdir -p "$work/downloads"
  python3 "$common/fetch.py" "$work/downloads/$1" ${from:+--from "$from"} ${known:+--sha256 "$known"} \
    "${mirrors[@]/%//$1}" "${@:2}" >&2
  grep -F "  $1" "$work/downloads/SHA256SUMS"
}

# A test set of sacreBLEU, which knows where it is. Prints its checksum.
fetch_testset() { # NAME OTHER_ADDRESS...
  local address
  address=$(python3 "$common/extract.py" address "$1")
  fetch "${address##*/}" "$address" "${@:2}"
}

testset() { # NAME SOURCE-TARGET SOURCE_FILE TARGET_FILE
  local any=()
  [[ ${sizes[*]} ]] || any=(--any)
  python3 "$common/extract.py" testset "${any[@]}" "$1" "$2" "$work/downloads" "$3" "$4"
}

# The steps; each gets, last, the folder to fill.

tokenized() { # SOURCE TARGET STEPS OUT
  local files=() text
  say "tokenising: $3"
  for text in "$done"/raw/*.{"$1","$2"}; do
    files+=(--file "${text##*.}" "$text" "$4/${text##*/}")
  done
  macaron-fairseq tokenize --steps "$3" --workers "$workers" "${files[@]}"
}

cleaned() { # FLAGS EVERY OUT
  local from=$done/tokenized train=$3/train flags text counts=()
  cp "$from"/*."$source" "$from"/*."$target" "$3/"
  if [[ $1 ]]; then
    read -r -a flags <<< "$1"
    python3 "$common/clean.py" "${flags[@]}" "$from/train.$source" "$from/train.$target" "$train".{"$source","$target"}
  fi
  if [[ $2 ]]; then
    python3 "$common/split.py" --every "$2" "$train.$source" "$train.$target" "$3/valid.$source" "$3/valid.$target"
  fi
  for text in train valid "${tests[@]}"; do counts+=("$(wc -l < "$3/$text.$source")"); done
  say "sentence pairs: train, valid, ${tests[*]}: ${counts[*]}"
  check_sizes "${counts[@]}"
}

# sacremoses splits some lines otherwise than Moses' script does, so that pairs at the limits of
# cleaning are kept or dropped: one in a thousand is let pass there, but none of a set that is given.
check_sizes() { # COUNT...
  local i usual off cleaned=0
  if [[ $clean ]]; then cleaned=$((valid_every ? 2 : 1)); fi
  for i in "${!sizes[@]}"; do
    [[ ${sizes[i]} ]] || continue
    usual=${sizes[i]} off=$((${@:i+1:1} - sizes[i]))
    if ((off == 0)); then continue; fi
    if ((i < cleaned && ${off#-} * 1000 <= usual)); then
      say "notice: usually there are $usual pairs and not ${*:i+1:1}, which is within what tokenisers differ"
      continue
    fi
    die "these should be ${sizes[*]}: the archives are not" \
      "the usual ones; if that is meant, give --sizes any"
  done
}

learned() { # MERGES OUT
  say "learning $1 BPE merges from both languages"
  # learn-bpe would count the words of one language after the other. They are apart by single spaces,
  # as tokenising leaves them. Nothing flows through the first pipe: it has both languages counted at
  # once, and a failure of either seen.
  if ((workers > 1)); then
    counted "$source" "$2" | counted "$target" "$2"
  else
    counted "$source" "$2"
    counted "$target" "$2"
  fi
  cat "$2/words.$source" "$2/words.$target" \
    | logged "$2/learn-bpe.log" subword-nmt learn-bpe --dict-input -s "$1" > "$2/code"
  rm "$2"/words.*
}

counted() { # LANGUAGE OUT
  logged "$2/count-$1.log" subword-nmt get-vocab < "$done/clean/train.$1" > "$2/words.$1"
}

segmented() { # OUT
  local files=() text
  say "applying BPE"
  for text in "$done"/clean/*.{"$source","$target"}; do
    files+=(--file "${text##*.}" "$text" "$1/${text##*/}")
  done
  macaron-fairseq tokenize --steps bpe --codes "$done/code/code" --workers "$workers" "${files[@]}"
  for text in "${tests[@]}"; do check_none_empty "$text" "$1"; done
  for text in valid "${tests[@]}"; do check_lengths "$text" "$1"; done
}

check_none_empty() { # SET FOLDER
  local language line
  for language in "$source" "$target"; do
    line=$(awk 'NF == 0 { print NR; exit }' "$2/$1.$language")
    [[ ! $line ]] || die "$1.$language, line $line is empty, and cannot be scored: mend or remove the pair"
  done
}

# fairseq stops at a sentence to validate or test with that is longer than the models' positions.
check_lengths() { # SET FOLDER
  local language line
  [[ "${extra[*]}" != *-positions* ]] || return 0 # other models than usual
  for language in "$source" "$target"; do
    line=$(awk 'NF > 1023 { print NR; exit }' "$2/$1.$language")
    [[ ! $line ]] || die "$1.$language, line $line is longer than 1023 tokens, which no model here takes:" \
      "split or remove it"
  done
}

binarised() { # OUT
  local prefixes="" language text parts=$((workers > 1 ? 8 * workers : 1))
  # fairseq does the first part once all others are done: small parts, that it be a short wait.
  ((parts <= 64)) || parts=$((workers > 64 ? workers : 64))
  for text in "${tests[@]}"; do prefixes+=,$done/bpe/$text; done
  say "binarising"
  logged "$1/preprocess.log" fairseq-preprocess -s "$source" -t "$target" --joined-dictionary --workers "$parts" \
    --trainpref "$done/bpe/train" --validpref "$done/bpe/valid" --testpref "${prefixes:1}" \
    --destdir "$1/data-bin" > /dev/null
  mkdir "$1/reference" "$1/tokenized"
  for text in "${tests[@]}"; do
    for language in "$source" "$target"; do
      cp "$done/raw/$text.$language" "$1/reference/"
      cp "$done/tokenized/$text.$language" "$1/tokenized/"
    done
  done
  cp "$done/code/code" "$1/"
  cp "$1"/data-bin/dict.*.txt "$1/" # where from_pretrained looks for them
  python3 "$common/describe.py" "$1" "$source" "$target" "$steps" "${tests[@]}"
}
