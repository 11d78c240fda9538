"""`python -m fer_vit`, where the command `fer-vit` is not on the path."""

from fer_vit.cli import main

main()
