"""A web page and an HTTP endpoint: ``tools/serve.py --weights W``; see ``--help``."""

from ffn.cli.serve import main

if __name__ == "__main__":
    raise SystemExit(main())
