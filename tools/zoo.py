"""List, download and check the zoo's weights: ``tools/zoo.py list|fetch|verify|table``."""

from ffn.cli.zoo import main

if __name__ == "__main__":
    raise SystemExit(main())
