"""Label video files: ``tools/predict.py FILE… --weights W --frames n``; see ``--help``."""

from ffn.cli.predict import main

if __name__ == "__main__":
    raise SystemExit(main())
