"""``python -m ffn COMMAND …``, the same as ``ffn COMMAND …``."""

from ffn.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
