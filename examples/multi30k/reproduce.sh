#!/usr/bin/env bash
# Multi30k (task 1): Macaron Net and a Transformer of equal size, from the archives to the table.
#
#   needs   2 CPU cores and 3 GB of memory, or any GPU; 3 GB of disk. Hours: on 2 cores
#           of an AMD EPYC both architectures took 2.3 for 2,480 updates, so 7.4 for 8,000. On an H200
#           ten runs at once took seven minutes (docs/howto/gpus.md)
#   prints  tokenised lowercased BLEU (tokens:model|nrefs:1|case:lc|...), and BLEU
#           (nrefs:1|case:lc|eff:no|tok:13a|smooth:exp) and chrF of sacreBLEU, for three test sets
#   others  Transformer 41.02 on test_2016_flickr, 33.36 on test_2017_flickr, 29.88 on test_2017_mscoco
#           (Wu et al. 2021, "Good for Misconceived Reasons", fairseq, tokenised lowercased BLEU; En-De).
#           The Macaron paper does not use this corpus. Ours, five seeds trained to the end: Transformer
#           40.65 to 41.51, Macaron 40.68 to 41.51, on test_2016_flickr (docs/results/multi30k.md)
#   ends    after 8,000 updates, or 10 epochs without a better validation loss; the mean of the last 10
#           epochs is scored: all as published there
#
#   --pair en-de (default), or any other two of en, de, fr and cs
#   --setting cased    keep upper case
#   --setting rdrop    train with R-Drop: each update sees its batch twice, and takes about twice as long
#
# Research use only: see the terms of the images' captions before you pass the data on.
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../recipe.py" "$here/${0##*/}" "$@"
