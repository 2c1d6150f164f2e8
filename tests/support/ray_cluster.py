"""The program of `RayServer`: a cluster of one host with one application, whose options are the argument, as JSON.

A line of JSON goes out once requests are taken, and one more for each line that comes in, with the replicas that run:
`{"replica": pid}`. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def tell(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main(options: dict[str, Any]) -> None:
    import ray
    from ray import serve
    from specexport.integrations.ray import build

    ray.init(
        num_cpus=options["cpus"],
        include_dashboard=False,
        object_store_memory=80 << 20,
        _temp_dir=options["folder"],
        _metrics_export_port=options["metrics"],
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": options["port"]})
    serve.run(build(options["args"]), name="specexport", route_prefix="/")
    tell({"ready": True})
    for _ in sys.stdin:
        tell(_running())
    serve.shutdown()
    ray.shutdown()


def _running() -> dict[str, int]:
    from ray.serve.context import _get_global_client

    details = _get_global_client().get_serve_details()  # as the dashboard has it
    deployments = details["applications"]["specexport"]["deployments"]
    replicas = deployments["specexport"]["replicas"]
    return {replica["replica_id"]: replica["pid"] for replica in replicas if replica["state"] == "RUNNING"}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
