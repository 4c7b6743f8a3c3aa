"""``python -m ffn COMMAND …``, the same as ``ffn COMMAND …``."""

from ffn.cli import run_process

if __name__ == "__main__":
    run_process()
