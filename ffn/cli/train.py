"""Train a network from a config, in one process or under torchrun."""

from __future__ import annotations

from ffn.cli.arguments import ConfigFile, Device, Override, read_run


def config_help() -> str:
    """All options of a config, for the end of the command's help."""
    from ffn.engine.config import option_help

    return f"Options of the config, as key=value:\n\n{option_help()}"


def train(config: ConfigFile, /, *overrides: Override, device: Device = None) -> None:
    """Train a video network from a config, in one process or under torchrun.

    If the run folder (log.output) has a checkpoint, the run is resumed.

    Exit status: 0: trained. 2: error; the message names the remedy. 75: stopped by SIGTERM, SIGINT
    or SIGUSR1 after saving a checkpoint; the same command resumes the run.
    """
    options, chosen = read_run(config, overrides, device)

    from ffn.engine.build import build_run
    from ffn.engine.failures import processes
    from ffn.engine.loop import train
    from ffn.engine.tasks import TASKS

    with processes("ffn train", data_timeout=options.data.timeout, device=chosen) as world:
        best = train(build_run(options, world, config.stem))
        if world.is_main:
            if not TASKS[options.task.name].needs_labels:
                last = best.with_name("last.pt")
                print(f"start a training with labels from this network: model.weights={last}")
                return
            print(f"best network: {best}; test it with")
            print(f"ffn test {best.with_name('config.yaml')} --weights {best}")
