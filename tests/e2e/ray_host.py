"""A program that test_ray.py runs: it starts a Ray cluster on this machine, and on it the requested applications."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import ray
from ray import serve

CPUS = 2
"""The cluster's number of CPUs, on which the documented command starts. Ray starts an idle process for each."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def pids() -> list[int]:
    """Returns the process ids of the replicas."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "ray::ServeReplica:default:LeanOvms" in line]


def metrics_address() -> str:
    """Returns the address of the metrics of the cluster's only machine."""
    [node] = ray.nodes()
    return f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"


def main() -> None:
    """Starts the cluster, and does what each line of the input says, one after the other.

    "replicas" serves two replicas with the scripted engine, and "kill" kills one of them. "run" is followed by the
    arguments of `serve run`. "wait" is followed by the number of replicas to wait for. "stop" ends what is served.
    """
    port = free_port()
    context = ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=True, namespace="serve")
    run: subprocess.Popen[bytes] | None = None
    for line in sys.stdin:
        word, *arguments = line.split()
        if word == "replicas":
            start(port)
            replicas(arguments[0])
            print(f"metrics at {metrics_address()}", flush=True)
            print(f"replicas at http://127.0.0.1:{port}", flush=True)
        elif word == "kill":
            before = pids()
            os.kill(before[0], signal.SIGKILL)
            print("killed", flush=True)
            threading.Thread(target=again, args=(before,), daemon=True).start()
        elif word == "run":
            start(port)
            address = context.address_info["gcs_address"]
            run = subprocess.Popen(["serve", "run", f"--address={address}", *arguments])
            print(f"serving at http://127.0.0.1:{port}", flush=True)
        elif word == "wait":
            threading.Thread(target=wait_for, args=(int(arguments[0]),), daemon=True).start()
        elif run is None:
            serve.shutdown()
            print("shut down", flush=True)
        else:
            run.send_signal(signal.SIGINT)
            run.wait(300)
            print("stopped", flush=True)
    serve.shutdown()
    ray.shutdown()


def start(port: int) -> None:
    """Starts Serve on a port. `serve run` stops it at its end."""
    serve.start(http_options={"host": "127.0.0.1", "port": port})


def replicas(store: str) -> None:
    from lean_ovms.ray_serve import application

    app = application(
        fake_engine=True,
        model_name="m",
        metrics_enable=True,
        plugin_config='{"step_s": 0.005}',
        response_store=store,
        allow_runtime_lora=True,
        deployment={
            "num_replicas": 2,
            "ray_actor_options": {"num_cpus": 1},
            "health_check_period_s": 1,
            "health_check_timeout_s": 5,
        },
    )
    serve.run(app)


def wait_for(count: int) -> None:
    """Waits until an application of Serve has a number of running replicas."""
    while True:
        [application] = serve.status().applications.values()
        [deployment] = application.deployments.values()
        if deployment.replica_states == {"RUNNING": count}:
            print(f"{count} replicas", flush=True)
            return
        time.sleep(0.2)


def again(before: list[int]) -> None:
    while len(set(pids()) - {before[0]}) < 2 or serve.status().applications["default"].status != "RUNNING":
        time.sleep(0.2)
    print("two replicas again", flush=True)


if __name__ == "__main__":
    main()
