"""The program ``ffn COMMAND …``, also as ``python -m ffn COMMAND …``."""

from ffn.interrupts import handle_interrupts

handle_interrupts()  # before the other imports

from ffn.cli import run_process  # noqa: E402

if __name__ == "__main__":
    run_process()
