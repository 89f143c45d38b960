"""The whole server over real sockets against the limit: openvino_genai in a bare loop, same work, same run.

Also the engine child without HTTP, which shows how much of the difference is the pipe. `engine` is this without the
server.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import race
from bench.processes import Server, Worker, children, closing, lean_ovms
from bench.race import Contestant
from bench.report import Report, options

PATH = "/v3/chat/completions"


def main(argv: Sequence[str]) -> None:
    """Bare loop, child, server."""
    _main("serve", __doc__, argv, with_server=True)


def engine(argv: Sequence[str]) -> None:
    """Bare loop, child."""
    _main("engine", __doc__, argv, with_server=False)


def _main(name: str, about: str | None, argv: Sequence[str], with_server: bool) -> None:
    parser = options(name, about)
    race.add_options(parser)
    parser.add_argument("--no_child", action="store_true", help="leave out the child without HTTP")
    args = parser.parse_args(argv)
    chosen = race.server_options(args)
    report = Report(name, args)
    bare = Worker("bare", *chosen)
    workers, servers = [bare], list[Server]()
    contestants = [Contestant(name="limit", run=runner(bare, ignore_eos=args.ignore_eos), pids={"engine": bare.pid})]
    if not args.no_child or not with_server:
        piped = Worker("piped", *chosen)
        workers.append(piped)
        contestants.append(child(piped, args.ignore_eos))
    if with_server:
        servers.append(lean_ovms(chosen))
        load = Worker("client")
        workers.append(load)
        contestants.append(over_http("lean_ovms", load, servers[0], args.ignore_eos))
    with closing(*workers, *servers):
        race.race(args, report, contestants)
    race.tables(report, "against the limit")


def runner(worker: Worker, **more: object):
    """A contestant's run."""
    return lambda work: worker.run(work, **more)


def child(worker: Worker, ignore_eos: bool) -> Contestant:
    """The engine child and our side of its pipe."""
    return Contestant(
        name="child without HTTP",
        run=runner(worker, ignore_eos=ignore_eos),
        pids={"front": worker.pid, "engine": children(worker.pid)[0]},
    )


def over_http(name: str, load: Worker, server: Server, ignore_eos: bool, **more: object) -> Contestant:
    """A server; its CPU times include the client's, which shares the machine."""
    fields = {"model": "demo", **({"ignore_eos": True} if ignore_eos else {})}
    where = {"port": server.port, "path": PATH, "fields": fields, **more}
    pids = {**server.all_pids, "client": load.pid}
    return Contestant(name=name, run=runner(load, **where), pids=pids, where=where, began=server.began)
