"""List the configs that ship: ``tools/configs.py [PATTERN]``; see ``--help``."""

from ffn.cli.configs import main

if __name__ == "__main__":
    raise SystemExit(main())
