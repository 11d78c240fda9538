"""The same program as `fer-vit`, from a checkout."""

from fer_vit.__main__ import main

if __name__ == "__main__":
    main()
