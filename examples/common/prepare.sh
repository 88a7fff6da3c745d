#!/usr/bin/env bash
# Raw parallel text to a fairseq data folder: Moses normalisation and tokenisation, joint BPE, joined
# dictionary.
#
#   prepare.sh RAW OUT SOURCE TARGET MERGES [--lowercase]
#
# RAW holds train, valid and test, each as NAME.SOURCE and NAME.TARGET. OUT becomes
#   data-bin/   what fairseq-train and fairseq-generate take
#   code        the BPE merges (from_pretrained finds them under this name)
#   bpe/        the segmented text
# Nothing is done where OUT was made from the same text with the same settings.
set -euo pipefail

usage="usage: prepare.sh RAW OUT SOURCE TARGET MERGES [--lowercase]"
raw=${1:?$usage} out=${2:?$usage} source=${3:?$usage} target=${4:?$usage} merges=${5:?$usage}
lowercase=${6:-}
[[ -z $lowercase || $lowercase == --lowercase ]] || { echo "$usage" >&2; exit 2; }

texts=()
for name in train valid test; do
  for language in "$source" "$target"; do
    text=$raw/$name.$language
    [[ -s $text ]] || { echo "prepare.sh: $text is missing or empty" >&2; exit 1; }
    texts+=("$text")
  done
  lines=$(wc -l < "$raw/$name.$source")
  [[ $lines == "$(wc -l < "$raw/$name.$target")" ]] || {
    echo "prepare.sh: $raw/$name.$source and .$target have different numbers of lines" >&2
    exit 1
  }
done

made_from=$(cat "${texts[@]}" | sha256sum | cut -d' ' -f1)
made_from="$made_from $source $target $merges $lowercase"
if [[ -f $out/made-from && $(< "$out/made-from") == "$made_from" ]]; then
  echo "prepare: $out is up to date"
  exit
fi
if [[ -e $out && ! -f $out/made-from ]]; then
  echo "prepare.sh: $out holds other things: choose a folder that does not exist yet" >&2
  exit 1
fi
work=$out.part
rm -rf "$work"
mkdir -p "$work/tokenized" "$work/bpe"

tokenize() { # LANGUAGE < raw text > tokenised text
  sacremoses -q -l "$1" -j "$(nproc)" normalize \
    | if [[ $lowercase ]]; then python3 -c 'import sys; sys.stdout.writelines(l.lower() for l in sys.stdin)'; else cat; fi \
    | sacremoses -q -l "$1" -j "$(nproc)" tokenize
}

for name in train valid test; do
  for language in "$source" "$target"; do
    echo "prepare: tokenising $name.$language"
    PYTHONIOENCODING=utf-8 tokenize "$language" < "$raw/$name.$language" > "$work/tokenized/$name.$language"
  done
done

echo "prepare: learning $merges BPE merges from both languages"
cat "$work/tokenized/train.$source" "$work/tokenized/train.$target" \
  | subword-nmt learn-bpe -s "$merges" > "$work/code" 2> "$work/learn-bpe.log"
for name in train valid test; do
  for language in "$source" "$target"; do
    subword-nmt apply-bpe -c "$work/code" < "$work/tokenized/$name.$language" > "$work/bpe/$name.$language"
  done
done

echo "prepare: binarising"
fairseq-preprocess -s "$source" -t "$target" --joined-dictionary --workers "$(nproc)" \
  --trainpref "$work/bpe/train" --validpref "$work/bpe/valid" --testpref "$work/bpe/test" \
  --destdir "$work/data-bin" > "$work/preprocess.log" 2>&1 \
  || { tail -n 20 "$work/preprocess.log" >&2; exit 1; }
cp "$work"/data-bin/dict.*.txt "$work/"
for language in "$source" "$target"; do cp "$raw/test.$language" "$work/"; done
echo "$made_from" > "$work/made-from"
rm -rf "$out"
mv "$work" "$out"
echo "prepare: $out is ready ($(wc -l < "$out/data-bin/dict.$source.txt") types)"
