"""The one place that imports onnxruntime.

Official builds may report usage; an offline device must not try, so that is switched off in the
environment before the import. Knows no model.
"""

from __future__ import annotations

import importlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from edge_runtime.errors import ProviderError

OLDEST_SUPPORTED = (1, 23)
_TELEMETRY_SWITCHES = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")
_INSTALL_HINT = (
    "install one: pip install 'edge-runtime[cpu]' "
    "(or [gpu], [openvino], [qnn], [directml], or your board's own onnxruntime wheel)"
)
_UPGRADE_HINT = "pip install --upgrade onnxruntime (or the distribution that you use)"


@cache
def onnxruntime() -> Any:
    """The onnxruntime module, imported on first use with telemetry off.

    Raises:
        ProviderError: none is installed, it cannot be loaded, or it is too old.
    """
    for name in _TELEMETRY_SWITCHES:
        os.environ[name] = "1"
    try:
        # Python shows Ctrl-C to the main thread alone, and this import would swallow it.
        with ThreadPoolExecutor(1) as pool:
            module = pool.submit(importlib.import_module, "onnxruntime").result()
    except ModuleNotFoundError as exc:
        missing = exc.name == "onnxruntime"
        what = "no onnxruntime is installed" if missing else _broken(exc)
        raise ProviderError(what, hint=_INSTALL_HINT) from exc
    except Exception as exc:  # a wheel for another numpy, Python or system library can raise any
        raise ProviderError(_broken(exc), hint=_INSTALL_HINT) from exc
    if not hasattr(module, "InferenceSession"):
        # Uninstalling one of the distributions that share the name leaves an empty folder behind.
        raise ProviderError(
            "onnxruntime is installed in part: it has no InferenceSession", hint=_INSTALL_HINT
        )
    found = version_tuple(module.__version__)
    if found < OLDEST_SUPPORTED:
        wanted = ".".join(map(str, OLDEST_SUPPORTED))
        raise ProviderError(
            f"onnxruntime {module.__version__} is too old: {wanted} or later is needed",
            hint=_UPGRADE_HINT,
        )
    return module


def require_version(oldest: str, what: str) -> None:
    """Refuse an onnxruntime that is older than something needs.

    Args:
        oldest: a version, such as ``"1.23"``.
        what: what needs it, for the message.

    Raises:
        ProviderError: as :func:`onnxruntime`, or it is too old.
    """
    found = onnxruntime().__version__
    if version_tuple(found) < version_tuple(oldest):
        raise ProviderError(
            f"{what} needs onnxruntime {oldest} or later, and {found} is installed",
            hint=_UPGRADE_HINT,
        )


def first_line(exc: BaseException) -> str:
    """The first line of a foreign error's message."""
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]


def _broken(exc: Exception) -> str:
    return f"onnxruntime cannot be loaded: {first_line(exc)}"


def version_tuple(version: str) -> tuple[int, ...]:
    """``"1.23.2"`` -> ``(1, 23, 2)``; what follows the numbers is dropped."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(n) for n in numbers.group().split(".")) if numbers else ()
