"""List the zoo's weights: ``tools/zoo.py [PATTERN] [--write]``; see ``--help``."""

from ffn.cli.zoo import main

if __name__ == "__main__":
    raise SystemExit(main())
