"""A differential framing fuzzer of your own, with the origin that records for it what arrives.

    run framing_fuzz BINARY ORIGIN.py FUZZER.py [COUNT] [SEED ...]

ORIGIN.py is started first, listens on 127.0.0.1:19005 and is the proxy's upstream. FUZZER.py is run with the proxy's port, a seed
and the number of streams for each seed, and closes with a line `N passed, N failed`. Both are Python.
"""

import re
import socket
import subprocess
import sys

from harness import Cases, Proxy, wait_until

ORIGIN = ("127.0.0.1", 19005)
LIMIT = 900  # seconds for one seed


def listens():
    with socket.socket() as probe:
        return probe.connect_ex(ORIGIN) == 0


def main():
    binary, recorder, fuzzer, *rest = sys.argv[1:]
    count, *seeds = rest or ["1000"]
    cases = Cases()
    if listens():
        sys.exit(f"{ORIGIN} is in use\n0 passed, 1 failed")
    origin = subprocess.Popen([sys.executable, recorder])
    try:
        if not wait_until(listens):
            sys.exit(f"{recorder} does not listen on {ORIGIN}\n0 passed, 1 failed")
        sections = f"""
[upstream]
url = "http://{ORIGIN[0]}:{ORIGIN[1]}"
[identity]
from = []
[[route]]
name = "all"
methods = ["POST"]
path = "/{{*rest}}"
"""
        with Proxy(binary, sections) as proxy:
            for seed in seeds or ["1"]:
                said, ended = run([sys.executable, fuzzer, str(proxy.port), seed, count])
                result = re.search(r"(\d+) passed, (\d+) failed\s*$", said)
                good = ended == 0 and result and int(result[1]) and result[2] == "0"
                cases.check(f"seed {seed}, {count} streams", good, said.strip()[-2000:])
            cases.check("it ends well", proxy.stop() == 0)
    finally:
        origin.kill()
        origin.wait()
    cases.exit()


def run(command):
    """What it printed, and how it ended; None where it did not end in time."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
        return done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode() + "it does not end", None


main()
