#!/bin/sh
# From a clean clone to passing tests. Arguments go to pytest.
#
#   sh tools/test.sh [-k NAME ...]
#
# Makes .venv, installs everything that the tests need there, brings SmolLM2-135M-Instruct (96 MB,
# Apache-2.0), and runs all of the tests, those on the real model too.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/tools/setup_venv.sh"

install_extras cpu,export,serve,guide,test
"$venv_python" -m edge_runtime pull smollm2-135m </dev/null >/dev/null
cd "$root"
exec "$venv_python" -m pytest "$@"
