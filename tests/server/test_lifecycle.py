"""Starting, being watched, and stopping."""

import http.client
import json
import pathlib
import signal
import socket
import subprocess
import threading
import time
import unittest

from support import Case, Server, command, raw, read_until, templated, wait_for

TEXT = "/v1/completions"
PIPE_BYTES = 65536
ENDLESS = {"prompt": "hello", "max_tokens": 100_000, "ignore_eos": True}


class Lifecycle(Case):
    def setUp(self):
        super().setUp()
        self.model = templated(self.folder, context=400_000)

    def test_one_line_says_where_it_listens(self):
        process = subprocess.Popen(
            command("serve", "-m", self.model, "--port", 0, "--ctx", 512, "--budget", "400M"),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = process.stdout.readline().decode()
        self.assertRegex(line, r"^listening on http://127\.0\.0\.1:\d+\n$")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        self.assertEqual((process.returncode, out), (0, b""))

    def test_as_json_it_says_more(self):
        with Server(self.model, "--ctx", 512, "--sessions", 2) as server:
            self.assertLessEqual({"ready", "url", "host", "port", "model", "ctx", "sessions"},
                                 set(server.ready))
            self.assertEqual((server.ready["ctx"], server.ready["sessions"]), (512, 2))

    def test_both_signals_end_it_with_0_whatever_runs(self):
        for how in (signal.SIGTERM, signal.SIGINT):
            server = Server(self.model, "--ctx", 200_000, "--sessions", 1)
            stream = server.connect()
            stream.sendall(raw(TEXT, {**ENDLESS, "stream": True}))
            read_until(stream, b"data: {")
            waiting = server.connect()
            waiting.sendall(raw(TEXT, ENDLESS))
            silent = server.connect()
            self.assertTrue(wait_for(lambda s=server: s.metric("tael_requests_queued") == 1))
            start = time.monotonic()
            self.assertEqual(server.stop(how), 0)
            self.assertLess(time.monotonic() - start, 10)
            # Neither looks like an answer that is whole.
            seen = waiting.recv(4096)
            self.assertTrue(not seen or b" 503 " in seen, seen)
            seen = b""
            with stream:
                while piece := stream.recv(1 << 16):
                    seen += piece
            self.assertNotIn(b"[DONE]", seen)
            waiting.close()
            silent.close()

    def test_an_answer_that_ends_soon_is_let_end(self):
        server = Server(self.model, "--ctx", 4096)
        replies = []
        thread = threading.Thread(target=lambda: replies.append(
            server.complete(max_tokens=200, ignore_eos=True)))
        thread.start()
        self.assertTrue(wait_for(lambda: server.metric("tael_sequences_running") == 1 or replies))
        self.assertEqual(server.stop(), 0)
        thread.join()
        self.assertEqual(replies[0].status, 200)
        self.assertEqual(replies[0].json["usage"]["completion_tokens"], 200)

    def test_a_service_manager_is_told(self):
        path = self.folder / "notify"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(listener.close)
        listener.bind(str(path))
        listener.settimeout(10)
        environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "300000"}
        server = Server(self.model, "--ctx", 512, env=environ)
        self.assertRegex(listener.recv(1024), b"^READY=1\nSTATUS=serving tiny-qwen")
        self.assertEqual([listener.recv(1024) for _ in range(3)], [b"WATCHDOG=1"] * 3)
        self.assertEqual(server.stop(), 0)
        seen = listener.recv(1024)
        while seen == b"WATCHDOG=1":
            seen = listener.recv(1024)
        self.assertEqual(seen, b"STOPPING=1")

    def test_a_system_prompt_of_the_server_is_resident(self):
        system = self.folder / "system.txt"
        system.write_text("You are the assistant of CNC-04. " * 8)
        with Server(self.model, "--ctx", 4096, "--system-file", system) as server:
            first = server.chat("what is wrong?", max_tokens=1).json["usage"]
            plain = server.post("/tokenize", {"content": system.read_text()}).json["count"]
            self.assertGreater(first["prompt_tokens"], plain)
            cached = first["prompt_tokens_details"]["cached_tokens"]
            self.assertGreaterEqual(cached, plain - 15)
            server.post("/v1/memory/trim", {"level": "critical"})
            again = server.chat("and now?", max_tokens=1).json["usage"]
            self.assertEqual(again["prompt_tokens_details"]["cached_tokens"], cached)
            own = server.post("/v1/chat/completions", {
                "messages": [{"role": "system", "content": "Mine."},
                             {"role": "user", "content": "x"}], "max_tokens": 1}).json["usage"]
            self.assertLess(own["prompt_tokens"], plain)

    def test_prefixes_come_back_after_a_restart(self):
        state = self.folder / "state"
        flags = ("--ctx", 8192, "--state-dir", state)
        prompt = [40 + i * i % 200 for i in range(3000)]
        with Server(self.model, *flags) as server:
            whole = server.complete(prompt, max_tokens=8, temperature=0).json["choices"][0]["text"]
        with Server(self.model, *flags) as server:
            usage = server.complete([*prompt, 5, 6, 7, 8, 9], max_tokens=1).json["usage"]
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 2992)
            again = server.complete(prompt, max_tokens=8, temperature=0).json["choices"][0]["text"]
            self.assertEqual(again, whole)

    def test_damaged_state_is_no_reason_not_to_serve(self):
        state = self.folder / "state"
        flags = ("--ctx", 2048, "--state-dir", state)
        with Server(self.model, *flags) as server:
            server.complete([65] * 500, max_tokens=1)
        (saved,) = state.iterdir()
        saved.write_bytes(saved.read_bytes()[:-100])
        with Server(self.model, *flags) as server:
            self.assertIn("not restored", server.log())
            self.assertEqual(server.complete([65] * 500, max_tokens=1).status, 200)
        self.fails(2, "serve", "-m", self.model, "--port", 0, "--state-dir",
                   self.folder / "no" / "such", names=["--state-dir"])
        self.fails(2, "serve", "-m", self.model, "--state-dir", state, "--prefix-cache", "off",
                   names=["--state-dir"])

    def test_a_damaged_table_of_kv_types_is_said_once(self):
        pathlib.Path(self.model + ".kv-safety.json").write_text("{")
        with Server(self.model) as server:
            self.assertEqual(server.log().count("is ignored"), 1, server.log())

    def test_the_queue_is_bounded_and_says_when_to_come_again(self):
        with Server(self.model, "--ctx", 200_000, "--sessions", 1, "--queue", 1) as server:
            held = []
            for queued in (0, 1):
                connection = server.connect()
                held.append(connection)
                connection.sendall(raw(TEXT, ENDLESS))
                self.assertTrue(wait_for(
                    lambda q=queued: server.metric("tael_sequences_running") == 1
                    and server.metric("tael_requests_queued") == q))
            reply = server.complete(max_tokens=1)
            self.assertEqual(reply.status, 503, reply)
            self.assertGreaterEqual(int(reply.headers["Retry-After"]), 1)
            self.assertEqual(reply.error["code"], "busy")
            for connection in held:
                connection.close()
            self.assertTrue(wait_for(lambda: server.complete(max_tokens=1).status == 200))

    def test_weights_are_given_back_when_nobody_asks(self):
        with Server(self.model, "--ctx", 512, "--idle-release", 1) as server:
            text = server.complete(max_tokens=8, temperature=0).json["choices"][0]["text"]
            self.assertTrue(wait_for(lambda: server.metric("tael_weights_released") == 1))
            again = server.complete(max_tokens=8, temperature=0).json["choices"][0]["text"]
            self.assertEqual(again, text)

    def test_a_log_that_nobody_reads_stops_nobody(self):
        process = subprocess.Popen(
            command("serve", "-m", self.model, "--port", 0, "--json", "--ctx", 512, "--budget", "400M"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            port = json.loads(process.stdout.readline())["port"]
            said = 0
            while said < 2 * PIPE_BYTES:  # a trim says some 40 bytes
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                for _ in range(100):
                    connection.request("POST", "/v1/memory/trim", b'{"level": "moderate"}')
                    self.assertEqual(connection.getresponse().read()[:1], b"{")
                connection.close()
                said += 100 * 40
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0)
        self.assertGreater(len(errors), PIPE_BYTES // 2)  # it was full
        self.assertLess(len(errors), 2 * PIPE_BYTES)

    def test_a_second_signal_ends_it_at_once(self):
        server = Server(self.model, "--ctx", 200_000)
        with server.connect() as connection:
            connection.sendall(raw(TEXT, {**ENDLESS, "stream": True}))
            connection.recv(1024)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            self.assertIsNone(server.process.poll(), "one signal was enough")
            start = time.monotonic()
            server.stop()
            self.assertLess(time.monotonic() - start, 1)


if __name__ == "__main__":
    unittest.main()
