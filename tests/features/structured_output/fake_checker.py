"""A grammar process without a compiler, which test_checker.py starts. The tag selects what it does."""

import json
import os
import socket
import sys
import time

stream = socket.socket(fileno=int(sys.argv[-1])).makefile("rw", encoding="utf-8")
part = sys.argv[1]
hello = json.loads(stream.readline())
if part == "dies":
    os._exit(3)
assert set(hello) == {"model_dir", "width", "memory_bytes"}
stream.write('{"ready": true}\n')
stream.flush()
for line in stream:
    tag = json.loads(line)["tag"]
    if tag == "crash":
        os.abort()
    if tag == "hang":
        time.sleep(1000)
    if tag == "work":
        while True:
            pass
    if tag == "wait":
        time.sleep(0.3)
    answer = {"error": "it is wrong"} if tag == "wrong" else {"seconds": 0.5, "bytes": len(tag)}
    stream.write(json.dumps(answer) + "\n")
    stream.flush()
