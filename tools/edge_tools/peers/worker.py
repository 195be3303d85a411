"""The far end of the pipe: answers requests with one runtime, in that runtime's own interpreter.

One JSON request a line on standard input, one JSON answer a line on standard output. Imports the
standard library alone: the interpreter may be one that has nothing of this project. What a runtime
cannot do is answered with ``unsupported``. :mod:`edge_tools.peers.peer` is the near end.

    WORKER.py                                     answers requests until standard input ends
    WORKER.py --once PATH THREADS CONTEXT ID...   loads, reads the ids, prints the first token
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def serve(
    load: Callable[..., Any], extra: dict[str, Callable[..., dict[str, Any]]] | None = None
) -> None:
    """Answer requests until standard input ends.

    Args:
        load: ``load(path, threads, context_length)`` gives an object whose methods are the
            operations; its ``version`` and ``load_s`` are told at once.
        extra: operations that need no model.
    """
    if sys.argv[1:2] == ["--once"]:
        path, threads, context, *ids = sys.argv[2:]
        runtime = load(path, int(threads), int(context))
        answer = runtime.generate([int(i) for i in ids], 1)
        print(answer["tokens"][0], flush=True)
        return
    runtime = None
    operations = extra or {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("operation")
        try:
            if name == "load":
                runtime = None  # the one before goes first: two would not measure one's memory
                runtime = load(**request)
                answer = {"version": runtime.version, "load_s": runtime.load_s}
            else:
                operation = operations.get(name) or getattr(runtime, name, None)
                answer = {"unsupported": name} if operation is None else operation(**request)
        except Exception as error:  # whatever it is, the other side must hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
