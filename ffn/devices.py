"""Names and abilities of the hardware."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Collection
from importlib import import_module
from typing import Any

import torch

from ffn.version import __version__

NO_COMPILER = "no C++ compiler for torch.compile: looked for $CXX, else g++, or clang++ on macOS"


def _read_processor() -> dict[str, str]:
    """What Linux says about the first processor; empty elsewhere."""
    if not os.path.exists("/proc/cpuinfo"):
        return {}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        pairs = (line.partition(":") for line in file.read().partition("\n\n")[0].splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs}


PROCESSOR = _read_processor()
FLAGS = PROCESSOR.get("flags", PROCESSOR.get("Features", "")).split()


def usable_cores() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_device(device: torch.device) -> str:
    """Name of the hardware: "NVIDIA H200", or a CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    threads = torch.get_num_threads()
    name = PROCESSOR.get("model name") or platform.processor() or platform.machine()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"


def describe_measurement(device: torch.device, *packages: str) -> dict[str, Any]:
    """Date, device and versions, also of further modules, for files of results."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    versions |= {"frame-flexible": __version__}
    versions |= {name: import_module(name).__version__ for name in ("timm", *packages)}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": describe_device(device),
        "versions": versions,
    }


def synchronize(device: torch.device) -> None:
    """Wait for the work of a CUDA device; other devices have none."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check_device(
    given: str | torch.device, name: str = "device", kinds: Collection[str] | None = None
) -> torch.device:
    """A device that torch finds.

    Args:
        given: such as "cuda:1".
        name: of the option, for the error.
        kinds: that are allowed, such as "cpu"; None allows all that torch has.

    Raises:
        ValueError: there is no such device, or it is of another kind.
    """
    try:
        device = torch.device(given)
    except RuntimeError:
        device = None
    if device is None or (kinds is not None and device.type not in kinds):
        raise ValueError(f"{name} is {str(given)!r}; allowed: cpu, cuda, cuda:1, …")
    found = {"cuda": torch.cuda.device_count, "mps": torch.mps.device_count}.get(device.type)
    if found is not None and (device.index or 0) >= found():
        raise ValueError(
            f"{name} is {str(given)!r}; torch finds {found()} {device.type.upper()} devices. "
            "Use cpu, or leave it out"
        )
    return device


def has_bf16() -> bool:
    """Whether torch has fast bf16 operators for this CPU.

    oneDNN has them for AVX-512, AMX and bf16 instructions of ARM. On other processors, torch takes
    several times as long in bf16 as in fp32.
    """
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return has_avx512 or "bf16" in FLAGS  # the flag is ARM's


def has_compiler() -> bool:
    """Whether torch finds the C++ compiler that it needs to compile graphs for a CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True
