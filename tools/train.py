"""Train from a config: ``tools/train.py CONFIG key=value…``; see ``--help``."""

import signal

# Until the run listens, Ctrl-C ends it without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from ffn.cli.train import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
