"""Names of the hardware."""

from __future__ import annotations

import os
import platform

import torch


def describe_device(device: torch.device) -> str:
    """Name of the hardware: "NVIDIA H200", or a CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):  # on Linux, platform returns the architecture
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            entries = (line.partition(":") for line in lines)
            name = next((value.strip() for key, _, value in entries if "model name" in key), name)
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"
