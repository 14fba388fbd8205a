"""A Ray cluster of several raylets on this machine, in a process of its own, for the tests marked `ray`.

    python tests/ray_cluster.py NODE[:KEY=VALUE...] ...

Each node has one CPU and, in its environment, the truth that fake servers there have beside the one they are told. The
first is the head. Prints a line of JSON when all are up: address, the process of each raylet, and that of the head's
own server. A line of JSON on stdin (`name`, `gpus`, `environment`) adds a node, or with the name alone takes it away,
and is answered so again; the end of stdin ends them all.
"""

from __future__ import annotations

import json
import os
import sys

STORE_BYTES = 80 * 2**20
# A lost node is noticed within a second or two; Ray's own default is for networks, and takes half a minute.
SOON = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "2",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
}


def main(nodes: list[str]) -> None:
    os.environ.update(SOON)
    from ray.cluster_utils import Cluster

    head, *others = (node.partition(":") for node in nodes)
    cluster = Cluster()
    raylets, added = {}, {}

    def add(name: str, environment: dict[str, str], **settings: object) -> None:
        node = cluster.add_node(
            num_cpus=1,
            object_store_memory=STORE_BYTES,
            node_name=name,
            env_vars=environment,
            wait=False,
            **settings,
        )
        raylets[name] = node.all_processes["raylet"][0].process.pid
        added[name] = node

    def say() -> None:
        cluster.wait_for_nodes()
        server = cluster.head_node.all_processes["gcs_server"][0].process.pid
        print(json.dumps({"address": cluster.address, "raylets": raylets, "server": server}), flush=True)

    add(head[0], {"SPECLIFT_FAKE_TRUTH": head[2]}, include_dashboard=False)
    for name, _, truth in others:
        add(name, {"SPECLIFT_FAKE_TRUTH": truth})
    say()
    for line in sys.stdin:
        asked = json.loads(line)
        if "gpus" in asked:
            add(asked["name"], asked["environment"], num_gpus=asked["gpus"])
        else:
            cluster.remove_node(added.pop(asked["name"]), allow_graceful=False)
        say()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
