"""Server of OpenAI's /v1/completions without a model, which sends tokens at given times. Standard library only.

    python tests/null_server.py --port 8000 --ttft-s 0.1 --itl-s 0.03

--times FILE appends one line of JSON per response: Unix time (`at`) and the values of time.perf_counter at which the
request was `received` and its tokens were `sent`, which is later than scheduled on a busy CPU.
--log-probability is the value for every token of a scored prompt (`echo`).
--late-every 20 --late-s 0.5 delays every twentieth response by 0.5 s.
--die-after ends the server at that request; --usage-with-choice adds an empty last choice, as llama-server does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

METRICS = 'vllm:num_preemptions_total{engine="0"} 2.0\nvllm:num_requests_running 3\nvllm:num_requests_waiting 1\n'


class NullServer:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            started_s = time.perf_counter()
            lengths = [
                line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            ]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            path = head.split()[1].decode()
            if path.endswith("/completions"):
                await self.complete(json.loads(body), writer, started_s)
            else:
                answer(writer, METRICS if path == "/metrics" else json.dumps({"data": [{"id": "null"}]}))
            await writer.drain()

    async def complete(self, request: dict[str, Any], writer: asyncio.StreamWriter, started_s: float) -> None:
        if request.get("echo"):
            logs = [None, *[self.arguments.log_probability] * len(request["prompt"])]
            answer(writer, json.dumps({"choices": [{"logprobs": {"token_logprobs": logs}}]}))
            return
        self.requests += 1
        at_s, received_s, sent_s = time.time(), started_s, []
        if self.requests == self.arguments.die_after:
            print("error: planted end", flush=True)
            sys.exit(3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        prompt, count = request["prompt"], request["max_tokens"]
        if self.arguments.late_every and self.requests % self.arguments.late_every == 0:
            started_s += self.arguments.late_s
        for number in range(count):
            due_s = started_s + self.arguments.ttft_s + number * self.arguments.itl_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            send(writer, {"choices": [{"text": " a"}]})
            sent_s.append(time.perf_counter())
            await writer.drain()
        choices = [{"text": ""}] if self.arguments.usage_with_choice else []
        send(writer, {"choices": choices, "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}})
        send(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        if self.arguments.times:
            with self.arguments.times.open("a") as file:
                print(json.dumps({"at": at_s, "received": received_s, "sent": sent_s}), file=file)


def answer(writer: asyncio.StreamWriter, text: str) -> None:
    body = text.encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def send(writer: asyncio.StreamWriter, data: dict[str, Any] | str) -> None:
    line = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(line), line))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-s", type=float, default=0.0)
    parser.add_argument("--itl-s", type=float, default=0.0)
    parser.add_argument("--late-every", type=int, default=0)
    parser.add_argument("--late-s", type=float, default=0.0)
    parser.add_argument("--log-probability", type=float, default=-3.0)
    parser.add_argument("--times", type=Path)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--usage-with-choice", action="store_true")
    arguments = parser.parse_args()
    server = await asyncio.start_server(NullServer(arguments).serve, "127.0.0.1", arguments.port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
