#!/usr/bin/env bash
# What a new user does: README's install of the core in a new environment, its size, its commands and its Python.
#   bash .ci/newcomer.sh PHOTO FOLDER
# PHOTO has a face. FOLDER is made; its subfolder `venv` is the environment.
set -euo pipefail
most=900 # MB of the environment, with pip itself
here=$(cd "$(dirname "$0")/.." && pwd)
photo=$(realpath "$1")
rm -rf "$2" && mkdir -p "$2" && cd "$2"

"${PYTHON:-python3}" -m venv venv
source venv/bin/activate
(cd "$here" && python -m pip install --quiet --disable-pip-version-check -c constraints.txt .)
python -m pip check
fer-vit --version
size=$(du -sm venv | cut -f1)
du -sm venv/lib/python*/site-packages/* | sort -rn | head -12
if [ "$size" -gt "$most" ]; then
  echo "The environment has $size MB, more than $most."
  exit 1
fi

mkdir photos && cp "$photo" photos/
cp "$photo" photo.jpg
fer-vit predict photos
test -s faces.csv
fer-vit visualize photos
test -s report/index.html
if fer-vit visualize photos --method pixels --output pixels 2> needs.txt; then
  echo "Expected that heat maps of pixels need PyTorch."
  exit 1
fi
cat needs.txt
grep -q "pip install .*fer-vit.*\[torch\]" needs.txt
sed -n '/^```python$/,/^```$/p' "$here/README.md" | sed '/^```/d' > readme.py
python readme.py
echo "README's install, commands and Python work. The environment has $size MB."
