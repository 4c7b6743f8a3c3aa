"""``python -m ffn COMMAND …``, the same as ``ffn COMMAND …``."""

from ffn.cli import main

raise SystemExit(main())
