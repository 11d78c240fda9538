#!/usr/bin/env bash
# What a new user does: README's install without extras in a new environment, its commands and its Python.
#   bash .ci/newcomer.sh PHOTO FOLDER
# PHOTO has a face. FOLDER is made; its subfolder `venv` is the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
photo=$(realpath "$1")
rm -rf "$2" && mkdir -p "$2" && cd "$2"

"${PYTHON:-python3}" -m venv venv
source venv/bin/activate
(cd "$here" && python -m pip install --quiet --disable-pip-version-check -c constraints.txt .)
python -m pip check
fer-vit --version

mkdir photos && cp "$photo" photos/
cp "$photo" photo.jpg
fer-vit predict photos
fer-vit visualize photos
sed -n '/^```python$/,/^```$/p' "$here/README.md" | sed '/^```/d' > readme.py
python readme.py
test -s faces.csv -a -s report/index.html
echo "README's install, commands and Python work. The environment has $(du -sm venv | cut -f1) MB."
