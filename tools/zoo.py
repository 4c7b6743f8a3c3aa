"""List the zoo's weights or models: ``tools/zoo.py [PATTERN] [--models]``; see ``--help``."""

from ffn.cli.zoo import main

if __name__ == "__main__":
    raise SystemExit(main())
