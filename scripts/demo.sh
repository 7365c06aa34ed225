#!/bin/sh
# The whole job on a small model, in a few minutes: calibrate, time the first token, hide needles, ask the server.
#
#   demo.sh PYTHON MODEL FOLDER
#
# FOLDER takes maps and results; all that an earlier run made is made again. Needs no network.
set -eu

python=$1 model=$2 folder=$3
here=$(dirname "$0")
split=20
maps=$folder/$(basename "$model" .gguf).$split.ridgefill.gguf
results=$folder/results.jsonl

mkdir -p "$folder"
rm -f "$maps" "$results"
echo "Calibrate on a little text, then time prompts of 4096 tokens and look for needles in 2048, exact and filled."
TOKENS=12000 REPEATS=2 NEEDLES=8 TEXTS=0 \
    "$here/measure.sh" "$(dirname "$python")/pyridgefill" "$model" "$folder" "$results" $split

"$python" - "$model" "$maps" "$results" <<'PY'
import json
import shlex
import sys
from pydoc_data.topics import topics

from pyridgefill.server import Server

model, maps, results = sys.argv[1:]
arguments = ["-m", model, "--ridgefill-maps", maps, "-c", "4096", "-np", "1"]
print("Ask llama-server about a page of Python's manual:")
with Server(arguments) as server:
    question = f"{topics['try'][:5000]}\n\nIn one sentence: what does a finally clause do?"
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 60, "temperature": 0}
    answer = server.client.post("/v1/chat/completions", json=body).raise_for_status().json()
print(" ", answer["choices"][0]["message"]["content"].strip())
rows = answer["timings"]["ridgefill"]
print(f"  ({rows['filled']} rows of its prompt were filled, {rows['exact']} ran exact)")

lines = [json.loads(line) for line in open(results, encoding="utf-8")]
(speed,) = [line["result"] for line in lines if line["cell"]["task"] == "ttft"]
hits = {line["cell"]["variant"]: line["result"] for line in lines if line["cell"]["task"] == "needle"}
found = ", ".join(f"{name} {result['hits']} of {result['prompts']}" for name, result in hits.items())
ratio = speed["ratio"]
pace = f"{ratio:.2f} times faster" if ratio >= 1 else f"{1 / ratio:.2f} times slower, so the machine did other work,"
print(
    f"\nThe first token of 4096 came {pace} with fill (the work allows {speed['bound']:.2f}). "
    f"Needles found: {found}.\nMore text, retrieval heads and measured settings make better maps: pyridgefill "
    f"calibrate {shlex.quote(model)} -o {shlex.quote(maps)}\nStart the server: make serve"
)
PY
