# Makes .venv in the clone and installs this project there. Sourced by quickstart.sh and test.sh,
# which set root (the clone's directory). Needs Python 3.10 or later, with its venv module.
#
# Gives: find_python, install_extras EXTRAS, venv_python (a path).
# PYTHON=/path/to/python3 chooses the interpreter that .venv is made with.

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $1"
    if [ $# -gt 1 ]; then say ""; say "hint: $2"; fi
    exit 1
}

# Sets python to the first interpreter that can make a virtual environment.
find_python() {
    python="" too_old="" no_venv=""
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 \
        python3.10 python; do
        # Run it rather than look for it: a version manager's stand-in may exist and not work.
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
            continue
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            too_old="${too_old:-$candidate is Python $version}"
        elif ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
            no_venv="${no_venv:-$candidate}"
        else
            python=$candidate
            return 0
        fi
    done
    if [ -n "$no_venv" ]; then
        fail "$no_venv has no venv module, which keeps this project's packages apart" \
            "on Debian, Ubuntu and Raspberry Pi OS: sudo apt install python3-venv"
    elif [ -n "$too_old" ]; then
        fail "$too_old, and this project needs 3.10 or later" \
            "install a newer Python, or name one: PYTHON=/path/to/python3 sh tools/quickstart.sh"
    fi
    fail "no Python was found (python3 does not run)" \
        "install Python 3.10 or later: on Debian and Ubuntu, sudo apt install python3 python3-venv"
}

_venv_is_usable() {
    [ -x "$venv_python" ] &&
        "$venv_python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# Runs a command with its output in a log, a dot every two seconds meanwhile, and the log's end
# shown if it fails.
_run_quietly() {
    _log=$1
    shift
    (while sleep 2; do printf '.' >&2; done) &
    _dots=$!
    trap 'kill "$_dots" 2>/dev/null; exit 130' INT TERM
    _status=0
    "$@" >"$_log" 2>&1 </dev/null || _status=$?
    kill "$_dots" 2>/dev/null || true
    wait "$_dots" 2>/dev/null || true
    trap - INT TERM
    say ""
    if [ "$_status" -ne 0 ]; then
        tail -n 25 "$_log" >&2
        fail "this step failed; all of its output is in $_log" \
            "the installation needs a package index; run the same command again to go on"
    fi
}

# install_extras "cpu,export": makes .venv where needed and installs the clone into it, unless that
# was done before with the same pyproject.toml, in this place.
install_extras() {
    _venv=$root/.venv
    venv_python=$_venv/bin/python
    if [ -d "$_venv/Scripts" ]; then venv_python=$_venv/Scripts/python.exe; fi
    _stamp=$_venv/installed-$(printf '%s' "$1" | tr ',' '-')
    _key="$root $(cksum <"$root/pyproject.toml")"
    if _venv_is_usable && [ -f "$_stamp" ] && [ "$(cat "$_stamp")" = "$_key" ]; then
        return 0
    fi
    if ! _venv_is_usable; then
        find_python
        say "Making .venv with $python ..."
        "$python" -m venv --clear "$_venv" || fail "could not make $_venv"
        if [ -d "$_venv/Scripts" ]; then venv_python=$_venv/Scripts/python.exe; fi
    fi
    printf 'Installing edge-runtime[%s] into .venv (about 280 MB on disk; a minute or two) ' "$1" >&2
    _run_quietly "$_venv/install.log" \
        "$venv_python" -m pip install --disable-pip-version-check --editable "$root[$1]"
    printf '%s\n' "$_key" >"$_stamp"
}
