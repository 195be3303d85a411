#!/bin/sh
# From a clean clone to a streamed answer of a real model.
#
#   sh tools/quickstart.sh ["prompt"]
#
# Makes .venv, installs the runtime and the exporter there, brings SmolLM2-135M-Instruct (96 MB,
# Apache-2.0) and asks it. A second run finds all that done and only asks.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/tools/setup_venv.sh"

model=smollm2-135m
if [ $# -gt 0 ]; then prompt="$*"; else prompt="What is gravity?"; fi

install_extras cpu,export
# Standard output is for the answer alone. pull is quick to see that the model is here already.
"$venv_python" -m edge_runtime pull "$model" </dev/null >/dev/null
# Greedy and not endless: the model is tiny, and wanders off when it may choose freely.
exec "$venv_python" -m edge_runtime run "$model" --temperature 0 --max-tokens 256 \
    -- "$prompt" </dev/null
