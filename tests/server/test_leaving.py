"""Clients that leave, and clients that read slowly (ACCEPTANCE H3)."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import unittest

from support import (
    LONG,
    SANITIZED,
    TEXT,
    Case,
    ServerCase,
    not_under_sanitizers,
    raw,
    read_until,
    reset,
    templated,
    wait_for,
)


def farewell(connection):
    connection.close()


class Leaving(ServerCase):
    CONTEXT = 400_000
    FLAGS = ("--ctx", 200_000, "--sessions", 1, "--prefix-cache", "off")
    # Seconds until the blocks are back; a sanitizer makes the pass that has begun several times as long.
    LIMIT = 1.0 if SANITIZED else 0.2

    def blocks(self):
        return self.server.metric("tael_kv_blocks_in_use")

    def setUp(self):
        super().setUp()
        self.assertTrue(wait_for(lambda: self.blocks() == 0), "blocks left by an earlier test")

    def begin(self, body, until=None):
        """Sends a request, and waits for some of its answer."""
        connection = self.server.connect()
        self.addCleanup(connection.close)
        connection.sendall(raw(TEXT, body))
        if until:
            read_until(connection, until)
        return connection

    def assert_blocks_come_back(self, leave, connection):
        self.assertGreater(self.blocks(), 0)
        leave(connection)
        start = time.monotonic()
        self.assertTrue(wait_for(lambda: self.blocks() == 0, seconds=5))
        # The question itself takes a few milliseconds.
        self.assertLess(time.monotonic() - start, self.LIMIT)

    def test_in_decode(self):
        for leave in (farewell, reset):
            for stream in (True, False):
                connection = self.begin({**LONG, "stream": stream}, b"data: {" if stream else None)
                self.assertTrue(wait_for(lambda: self.blocks() > 0))
                time.sleep(0.1)
                self.assert_blocks_come_back(leave, connection)

    def test_in_prefill(self):
        body = {**LONG, "prompt": "x" * 90_000, "max_tokens": 1}
        for leave in (farewell, reset):
            for stream in (True, False):
                before = self.server.metric("tael_passes_total")
                connection = self.begin({**body, "stream": stream})
                self.assertTrue(
                    wait_for(lambda b=before: self.server.metric("tael_passes_total") > b + 2))
                self.assert_blocks_come_back(leave, connection)

    def test_one_that_waits_in_the_queue_never_runs(self):
        running = self.begin({**LONG, "stream": True}, b"data: {")
        for leave in (farewell, reset):
            computed = self.server.metric("tael_prompt_tokens_total")
            waiting = self.begin({**LONG, "prompt": "y" * 5000})
            self.assertTrue(wait_for(lambda: self.server.metric("tael_requests_queued") == 1))
            leave(waiting)
            self.assertTrue(wait_for(lambda: self.server.metric("tael_requests_queued") == 0,
                                     seconds=self.LIMIT + 0.1))
            self.assertEqual(self.server.metric("tael_prompt_tokens_total"), computed)
        self.assert_blocks_come_back(farewell, running)

    def test_half_a_request_is_no_request(self):
        whole = raw(TEXT, LONG)
        for end in (5, 60, len(whole) - 1):
            connection = self.server.connect()
            connection.sendall(whole[:end])
            connection.close()
        self.assertEqual(self.server.complete(max_tokens=1).status, 200)


class Neighbours(ServerCase):
    CONTEXT = 50_000
    FLAGS = ("--ctx", 20_000, "--sessions", 4)

    def test_who_stays_gets_the_same_bytes(self):
        body = {"prompt": "a neighbour", "max_tokens": 400, "temperature": 1.5, "seed": 7,
                "ignore_eos": True}
        alone = self.server.post(TEXT, body).json["choices"][0]["text"]
        done = threading.Event()

        def come_and_go():
            leave = [farewell, reset]
            for i in range(1000):
                if done.is_set():
                    return
                connection = self.server.connect()
                connection.sendall(raw(TEXT, {**LONG, "max_tokens": 5000, "stream": i % 2 == 0,
                                              "prompt": "z" * (1 + 977 * i % 3000)}))
                time.sleep(0.01 + 0.003 * (i % 7))
                leave[i % 2](connection)

        threads = [threading.Thread(target=come_and_go) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                self.assertEqual(self.server.post(TEXT, body).json["choices"][0]["text"], alone)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        self.assertTrue(wait_for(lambda: self.server.metric("tael_sequences_running") == 0))

    @not_under_sanitizers
    def test_a_slow_reader_stops_nobody_else(self):
        slow = socket.socket()
        self.addCleanup(slow.close)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", self.server.port))
        slow.sendall(raw(TEXT, {**LONG, "max_tokens": 15_000, "stream": True}))
        self.assertTrue(wait_for(lambda: self.server.metric("tael_sequences_paused") == 1, 30))
        used = self.server.get("/v1/memory").json["rss_anon_bytes"]
        self.assertEqual(self.server.complete(max_tokens=20, ignore_eos=True).status, 200)
        time.sleep(1)
        more = self.server.get("/v1/memory").json["rss_anon_bytes"] - used
        self.assertLess(more, 1 << 20, "the buffer has no bound")
        # It goes on where it stopped, and loses nothing.
        slow.settimeout(60)
        read_until(slow, b"[DONE]")
        self.assertEqual(self.server.metric("tael_requests_slow_reader_total"), 0)


class Vanishing(Case):
    """A client whose network is gone says no word, and none comes back from it."""

    def test_is_noticed_while_it_reads_and_while_it_waits(self):
        if "TAEL_TEST_FULL" not in os.environ:
            self.skipTest("takes 50 seconds: set TAEL_TEST_FULL")
        own_network = ["unshare", "--net", sys.executable, "-B"]
        if subprocess.run([*own_network, "-c", ""], capture_output=True, check=False).returncode != 0:
            self.skipTest("no network namespaces here")
        script = pathlib.Path(__file__).with_name("vanishing.py")
        done = subprocess.run([*own_network, script, templated(self.folder, 400_000)],
                              capture_output=True, check=False, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        found = json.loads(done.stdout)
        self.assertGreater(found["blocks_before"], 0)
        self.assertEqual(found["queued_before"], 1)
        self.assertEqual((found["blocks"], found["queued"], found["answers"]), (0, 0, 200))


if __name__ == "__main__":
    unittest.main()
