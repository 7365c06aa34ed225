#!/bin/sh
# Compare maps of one split: how much text, which text, weight types, targets, ranks, normalised features.
#
#   compare_maps.sh PYRIDGEFILL MODEL FOLDER RESULTS SPLIT [HANDBOOK]
#
# FOLDER takes sums and maps, RESULTS the lines of `pyridgefill eval perplexity`. HANDBOOK is the folder `html` of
# Debian's package debian-handbook, for prose in English, German and Chinese.
set -eu

pyridgefill=$1 model=$2 folder=$3 results=$4 split=$5
handbook=${6:-/usr/share/doc/debian-handbook/html}
here=$(dirname "$0")

sums() { # NAME TOKENS OPTIONS...: collect, or go on with what is there
    name=$1 tokens=$2
    shift 2
    "$pyridgefill" collect "$model" -o "$folder/$name.npz" --splits "$split" --held-out 0.2 --tokens "$tokens" "$@"
}

measure() { # MAPS OPTIONS...
    maps=$1
    shift
    "$pyridgefill" eval perplexity "$model" "$folder/$maps.gguf" --ctx 1024 --texts 8 --tail 256 --sink 4 \
        --select none --json "$results" "$@"
}

maps() { # SUMS MAPS OPTIONS...
    from=$1 name=$2
    shift 2
    "$pyridgefill" fit "$folder/$from.npz" -o "$folder/$name.gguf" --splits "$split" --tail 256 "$@"
    measure "$name"
}

# how many tokens: the sums of fewer are the start of the sums of more
resume=
for tokens in 2000 5000 10000 20000 50000 100000 200000; do
    # shellcheck disable=SC2086
    sums curve $tokens --target both $resume
    resume=--resume
    cp "$folder/curve.npz" "$folder/curve-$tokens.npz"
    maps curve-$tokens curve-$tokens
done

# of one set of sums
maps curve-50000 q8_0 --type q8_0
maps curve-50000 q4_0 --type q4_0
maps curve-50000 input --target input
for rank in 32 64 128; do
    maps curve-50000 rank-$rank --rank $rank
done

sums none20000 20000 --target proj --feature-norm none
maps none20000 no-norm-20000

# which text: English prose, and a quarter each of it, German, Chinese and code
for language in en-US de-DE zh-CN; do
    for part in calibrate evaluate; do
        "$here/handbook_text.py" $language $part "$folder/handbook-$language-$part.txt" --folder "$handbook"
    done
    sums $language-5000 5000 --target proj --corpus "$folder/handbook-$language-calibrate.txt"
done
sums code-5000 5000 --target proj --corpus stdlib-code
"$pyridgefill" merge "$folder/en-US-5000.npz" "$folder/de-DE-5000.npz" "$folder/zh-CN-5000.npz" \
    "$folder/code-5000.npz" -o "$folder/mixed-20000.npz"
sums prose-20000 20000 --target proj --corpus "$folder/handbook-en-US-calibrate.txt"
maps prose-20000 prose-20000
maps mixed-20000 mixed-20000
for language in en-US de-DE zh-CN; do
    for name in prose-20000 mixed-20000 curve-20000; do
        measure $name --corpus "$folder/handbook-$language-evaluate.txt"
    done
done
