"""Run in a network namespace of its own by test_leaving: the network goes away under two clients.

Nobody sends FIN or RST then; only the server's own watch can find out. Prints what its figures are
when the network is back.
"""

import fcntl
import json
import socket
import struct
import sys
import time

from support import LONG, TEXT, Server, raw, read_until, wait_for

SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
AWAY_SECONDS = 45  # the server gives a silent client 30


def set_loopback(up):
    flags = IFF_UP | IFF_RUNNING if up else 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def main():
    set_loopback(True)
    with Server(sys.argv[1], "--ctx", 200_000, "--sessions", 1, "--prefix-cache", "off") as server:
        reader, waiting = server.connect(), server.connect()
        reader.sendall(raw(TEXT, {**LONG, "stream": True}))
        read_until(reader, b"data: {")
        waiting.sendall(raw(TEXT, LONG))
        wait_for(lambda: server.metric("tael_requests_queued") == 1)
        before = server.metric("tael_kv_blocks_in_use")
        queued = server.metric("tael_requests_queued")
        set_loopback(False)
        time.sleep(AWAY_SECONDS)
        set_loopback(True)
        wait_for(lambda: server.metric("tael_kv_blocks_in_use") == 0, seconds=2)
        print(json.dumps({"blocks_before": before, "queued_before": queued,
                          "blocks": server.metric("tael_kv_blocks_in_use"),
                          "queued": server.metric("tael_requests_queued"),
                          "answers": server.complete(max_tokens=2).status}))


if __name__ == "__main__":
    main()
