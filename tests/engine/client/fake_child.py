"""An engine child that plays a part: `python fake_child.py <part> <fd>`. The prompt of a Submit says what it does.

Parts: ok, die, die_talking (with an exception), hang, garbage, wrong, load_failed, die_after_ready, holder (its own
child keeps the pipe open), escapee (the same, in another session), deaf (ignores everything), stubborn (also ignores
SIGTERM), vocabulary (a different one after each start), report (reports what it was given), FILE (the part that FILE
contains). Prompts: "count N" sends N tokens, one frame each; "burst N" in one frame; "hang"; "die"; "garbage";
"refuse"; "fail"; "half" (half a frame, then dies); "slow" (one token per ping).
The first text of an Encode may be "abort" (the others are printed to stderr, then it dies by SIGABRT).
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from lean_ovms.engine import protocol
from lean_ovms.errors import BadRequest, EngineFailure
from lean_ovms.types import SamplingParams
from lean_ovms.util.child_process import LOG_FD

INFO = {
    "vocab_size": 4,
    "context_length": 128,
    "kv_blocks": 8,
    "block_size": 32,
    "eos_token_ids": [0],
    "bos_token": "",
    "eos_token": "",
    "chat_template": "",
    "speculative": "",
    "prefix_caching": True,
    "versions": {},
}
STATS = {
    "running": 1,
    "queued": 2,
    "kv_blocks_used": 3,
    "kv_blocks_total": 8,
    "steps": 4,
    "preemptions": 5,
    "recoveries": 6,
}


class Actor:
    def __init__(self, sock, part):
        self.sock = sock
        self.part = part
        self.slow = []

    def send(self, *records):
        self.sock.sendall(protocol.encode(records))

    def greet(self):
        if self.part.startswith("killed"):
            os.kill(os.getpid(), int(self.part.removeprefix("killed")))
        if self.part == "die":
            sys.exit(7)
        if self.part == "die_talking":
            raise RuntimeError("no such device")
        if self.part == "hang":
            time.sleep(600)
        if self.part == "garbage":
            self.sock.sendall(b"Traceback (most recent call last):\n")
            time.sleep(600)
        if self.part == "wrong":
            self.send(protocol.Pong(1, STATS))
            time.sleep(600)
        if self.part == "report":
            self.send(protocol.LoadFailed(json.dumps(self.report())))
            sys.exit(3)
        if self.part == "load_failed":
            self.send(protocol.LoadFailed("no such model: /x"))
            sys.exit(3)
        last = str(os.getpid()) if self.part == "vocabulary" else "d"
        self.send(protocol.Ready(INFO, {"pieces": ["a", "\xff", "c", last], "special": [0]}))
        if self.part == "die_after_ready":
            os._exit(9)
        if self.part in ("holder", "escapee"):
            alone = self.part == "escapee"
            subprocess.Popen(["sleep", "600"], pass_fds=[self.sock.fileno()], start_new_session=alone)
        if self.part == "deaf":
            time.sleep(600)
        if self.part == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)

    def report(self):
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        return {
            "fds": [n for n in numbers if os.path.exists(f"/proc/self/fd/{n}") and n != self.sock.fileno()],
            "stdin": os.readlink("/proc/self/fd/0"),
            "log_fd": (fd := os.environ.get(LOG_FD)) and int(fd),
            "log": fd and os.readlink(f"/proc/self/fd/{fd}"),
            "session": os.getsid(0) == os.getpid(),
            "blas": os.environ["OPENBLAS_NUM_THREADS"],
            "package": protocol.__file__,
            "config": self.config,
        }

    def take(self, record):
        match record:
            case protocol.Submit():
                self.submit(record)
            case protocol.Encode():
                if record.texts == ["die"]:
                    os._exit(9)
                if record.texts == ["hang"]:
                    return
                if record.texts[0] == "abort":
                    os.write(2, "".join(record.texts[1:]).encode())
                    os.abort()
                if record.texts == ["refuse"]:
                    self.send(protocol.Refused(record.id, BadRequest("no").to_wire()))
                    return
                self.send(protocol.Encoded(record.id, [[len(t)] for t in record.texts]))
            case protocol.Decode():
                self.send(protocol.Decoded(record.id, " ".join(map(str, record.tokens))))
            case protocol.Ping():
                self.send(protocol.Pong(record.id, STATS))
                for number, left in self.slow:
                    self.send(protocol.Tokens(number, 0, [left], None, None if left else "stop"))
                self.slow = [(number, left - 1) for number, left in self.slow if left]

    def submit(self, record):
        verb, _, number = record.prompt.partition(" ") if isinstance(record.prompt, str) else ("tokens", "", "")
        count = int(number or 0)
        if verb == "refuse":
            self.send(protocol.Refused(record.id, BadRequest("too long", param="prompt").to_wire()))
            return
        if verb == "mute":
            return
        tokens = [1, 2, 3] if record.want_tokens else None
        self.send(protocol.Accepted(record.id, 3, tokens))
        if SamplingParams(**record.sampling).prompt_logprobs:
            self.send(protocol.PromptLogprobs(record.id, [None, -1.0, -2.0]))
        if verb in ("count", "burst"):
            rows = list(self.rows(record, count))
            if verb == "burst":
                self.send(*rows)
            else:
                for row in rows:
                    self.send(row)
        elif verb == "slow":
            self.slow.append((record.id, count))
        elif verb == "fail":
            self.send(protocol.Tokens(record.id, 0, [1], None, None))
            self.send(protocol.Failed(record.id, EngineFailure("out of KV blocks").to_wire()))
        elif verb == "garbage":
            self.sock.sendall(b"\x04\x00\x00\x00oops")
        elif verb == "submit_back":
            self.send(protocol.Cancel(record.id))
        elif verb == "half":
            self.send(protocol.Tokens(record.id, 0, [1], None, None))
            self.sock.sendall(protocol.encode([protocol.Tokens(record.id, 0, [2], None, "stop")])[:-3])
            os._exit(9)
        elif verb == "die":
            os._exit(9)
        elif verb == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)

    def rows(self, record, count):
        sampling = SamplingParams(**record.sampling)
        logprobs = sampling.logprobs
        for token in range(count):
            for index in range(sampling.n):
                final = "stop" if token == count - 1 else None
                yield protocol.Tokens(record.id, index, [token], [-float(token)] if logprobs else None, final)


def main():
    part, fd = sys.argv[1:]
    if os.path.exists(part):
        part = pathlib.Path(part).read_text()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(fd)) as sock:
        actor = Actor(sock, part)
        decoder = protocol.Decoder()
        load = decoder.feed(sock.recv(1 << 16))
        if not load:
            return
        actor.config = load[0].config
        actor.greet()
        while data := sock.recv(1 << 16):
            for record in decoder.feed(data):
                actor.take(record)


main()
