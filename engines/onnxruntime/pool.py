"""Which threads an ONNX Runtime session computes on.

By default each session has a pool of its own, as other sessions of the process have: loading a bundle changes nothing
for them, and two bundles may use different numbers of threads. A pool's workers spin for a while after a run, waiting
for the next one, and would take the cores from the other model's pass. With `session.force_spinning_stop` they stop
when their session's run returns.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Literal, cast, get_args

from ...errors import EngineError, ParameterError

# global: one pool for the process, which every other session must then share. session: a pool each, as ONNX Runtime
# makes them. stop: a pool each, whose workers stop spinning when a run returns. quiet: a pool each that never spins.
Pool = Literal["global", "session", "stop", "quiet"]
DEFAULT: Pool = "stop"
# For measuring only, until one is chosen.
VARIABLE = "SPECEXPORT_ORT_POOL"


def configure(options: Any, threads: int, ort: Any) -> None:
    """Give `options` (a `SessionOptions` of the module `ort`) its pool of `threads`; 0 is one a physical core."""
    pool = _chosen()
    if pool == "global":
        _make_global_pool(threads, ort)
        options.use_per_session_threads = False
        return
    options.intra_op_num_threads = threads
    if pool == "stop":
        options.add_session_config_entry("session.force_spinning_stop", "1")
    elif pool == "quiet":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")


def _chosen() -> Pool:
    name = os.environ.get(VARIABLE, DEFAULT)
    if name not in get_args(Pool):
        raise ParameterError(f"{VARIABLE} is {name!r}; it must be one of {', '.join(get_args(Pool))}")
    return cast(Pool, name)


@cache
def _make_global_pool(threads: int, ort: Any) -> None:
    if _make_global_pool.cache_info().currsize:
        raise EngineError(
            "ONNX Runtime's thread pool is already made with another number of threads; use one number a process"
        )
    ort.set_global_thread_pool_sizes(threads, 1)
