"""Log of a run: console lines, ``log.jsonl``, metrics, TensorBoard and wandb."""
