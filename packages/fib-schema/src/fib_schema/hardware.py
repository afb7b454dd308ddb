"""Hardware names. Their architectures (compute capabilities), and whether a solution for some targets fits a device.

Names are those of ``BuildSpec.target_hardware`` and of `torch.cuda.get_device_name`. They are compared without case,
vendor and punctuation: ``NVIDIA_H100``, ``h100`` and ``NVIDIA H100 80GB HBM3`` are the same hardware.

Source: https://developer.nvidia.com/cuda-gpus and https://rocm.docs.amd.com, table of GPU architectures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from .errors import UnknownName

_TABLE = {
    "7.0": "V100, Titan V",
    "7.5": "T4, T4G, T10, T40, RTX 2060, RTX 2070, RTX 2080, Titan RTX, RTX 4000, RTX 5000, RTX 6000, RTX 8000, "
    "GTX 1650, GTX 1660",
    "8.0": "A100, A800, A30, PG506",
    "8.6": "A10, A10G, A10M, A2, A16, A40, RTX 3050, RTX 3060, RTX 3070, RTX 3080, RTX 3090, RTX A2000, RTX A3000, "
    "RTX A4000, RTX A4500, RTX A5000, RTX A5500, RTX A6000, A4000, A4500, A5000, A6000",
    "8.7": "Orin",
    "8.9": "L4, L20, L40, L40S, L40G, L2, RTX 4050, RTX 4060, RTX 4070, RTX 4080, RTX 4090, RTX 2000 Ada, "
    "RTX 4000 Ada, RTX 4000 SFF Ada, RTX 4500 Ada, RTX 5000 Ada, RTX 5880 Ada, RTX 6000 Ada",
    "9.0": "H20, H100, H200, H800, GH200",
    "10.0": "B100, B200, GB200",
    "10.3": "B300, GB300",
    "11.0": "Thor",
    "12.0": "RTX 5050, RTX 5060, RTX 5070, RTX 5080, RTX 5090, RTX PRO 2000, RTX PRO 4000, RTX PRO 4500, "
    "RTX PRO 5000, RTX PRO 6000",
    "12.1": "GB10, DGX Spark",
    "gfx908": "MI100",
    "gfx90a": "MI210, MI250, MI250X",
    "gfx942": "MI300, MI300A, MI300X, MI308X, MI325X",
    "gfx950": "MI350X, MI355X",
    "gfx1100": "RX 7900, W7900",
    "gfx1201": "RX 9070",
    "cpu": "CPU, x86_64, AMD64, AArch64, ARM64, Xeon, EPYC, Ryzen, Intel Core, Grace",
}
"""The names by architecture."""
_FAMILIES: Mapping[str, frozenset[str]] = MappingProxyType({
    "volta": frozenset({"7.0"}),
    "turing": frozenset({"7.5"}),
    "ampere": frozenset({"8.0", "8.6", "8.7"}),
    "ada": frozenset({"8.9"}),
    "ada lovelace": frozenset({"8.9"}),
    "hopper": frozenset({"9.0"}),
    "blackwell": frozenset({"10.0", "10.3", "12.0", "12.1"}),
    "cdna3": frozenset({"gfx942"}),
})  # fmt: skip
_ANY_GPU = frozenset({"cuda", "gpu"})
_ANY_AMD_GPU = frozenset({"rocm", "hip"})
_VENDORS = frozenset({"nvidia", "amd", "tesla", "geforce", "quadro", "instinct", "radeon", "jetson"})
_SERIES = re.compile(r"\b(rtx|gtx|pro|rx)(?=\d)")
_SM = re.compile(r"(?:(?:sm|compute) ?([1-9]\d?)|([1-9]\d?) )(\d)[af]?")
_GFX = re.compile(r"gfx[1-9][0-9a-f]{2,3}\b")
_MAX_LENGTH = 200


class Fit(StrEnum):
    """Relation of the targets of a solution to a device."""

    NAMED = "named"
    """A target names the device, or any device of its kind (``cuda``, ``gpu``)."""
    SAME_ARCHITECTURE = "same architecture"
    """A target has the compute capability of the device."""
    NONE = "none"


def fit_of(targets: Iterable[str], hardware: str) -> Fit:
    """Compare the targets of a solution with a device, by its name as traces state it; ``cpu`` is the CPU."""
    targets = list(targets)
    own = architectures_of(hardware)
    if any(_names_device(_plain(target), hardware, own) for target in targets):
        return Fit.NAMED
    if len(own) == 1 and any(own <= architectures_of(target) for target in targets):
        return Fit.SAME_ARCHITECTURE
    return Fit.NONE


def unknown_targets(targets: Iterable[str], hardware: str) -> list[UnknownName]:
    """An error, with suggestions, for each target that is neither in the table nor the name of the device."""
    return [
        UnknownName("hardware", target, _NAMES)
        for target in targets
        if not architectures_of(target)
        and (plain := _plain(target)) not in _ANY_GPU | _ANY_AMD_GPU
        and not _names_device(plain, hardware, frozenset())
    ]


@lru_cache(256)
def architectures_of(name: str) -> frozenset[str]:
    """The architectures that a name stands for; empty if it is unknown, several for ``Ampere`` or ``Blackwell``.

    The name is that of a device (``NVIDIA H100 80GB HBM3``), a model (``H100``), an architecture (``sm_90a``, ``9.0``,
    ``gfx942``), a family (``Hopper``), or ``cpu``. Architectures are ``9.0``, ``gfx942`` or ``cpu``.
    """
    if len(name) > _MAX_LENGTH:
        return frozenset()
    plain = _plain(name)
    if plain in _FAMILIES:
        return _FAMILIES[plain]
    if found := _GFX.match(plain):
        return frozenset({found[0]})
    if found := _SM.fullmatch(plain):
        return frozenset({f"{found[1] or found[2]}.{found[3]}"})
    framed = f" {plain} "
    return next((frozenset({_BY_NAME[known]}) for known in _LONGEST_FIRST if f" {known} " in framed), frozenset())


def _names_device(target: str, hardware: str, architectures: frozenset[str]) -> bool:
    """Whether a target without vendor and punctuation names a device, or any device of its kind."""
    device = _plain(hardware)
    if target == device or hardware == "cpu":
        return target == device
    is_amd = any(architecture.startswith("gfx") for architecture in architectures)
    return target in _ANY_GPU or (is_amd and target in _ANY_AMD_GPU) or (bool(target) and target in device.split())


def _plain(name: str) -> str:
    """A name without case, vendor and punctuation; the words of a series are apart (``rtx 4090``)."""
    words = re.sub(r"[\W_]+", " ", name[: _MAX_LENGTH + 1].casefold()).split()
    return _SERIES.sub(r"\1 ", " ".join(word for word in words if word not in _VENDORS or len(words) == 1))


_BY_NAME: Mapping[str, str] = MappingProxyType(
    {_plain(name): architecture for architecture, names in _TABLE.items() for name in names.split(", ")}
)
_NAMES = tuple(name for names in _TABLE.values() for name in names.split(", "))
_LONGEST_FIRST = tuple(sorted(_BY_NAME, key=len, reverse=True))
