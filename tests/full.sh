#!/bin/sh
# The long, exhaustive tests: minutes to hours. Run from anywhere, with pyrobust installed; arguments go to pytest.
# Bundled data suffice; tests on further data run where PYROBUST_DATA names their folder.
set -eu
cd "$(dirname "$0")"  # not the root, where the source would hide the installed package
exec python -m pytest -m full "$@"
