"""A server without a model: OpenAI's /v1/completions, with a token at planted times. Standard library only.

    python tests/null_server.py --port 8000 --ttft-s 0.1 --itl-s 0.03

--late-every 20 --late-s 0.5 delays every twentieth answer by half a second;
--die-after ends it after so many requests; --usage-with-choice answers like llama-server, whose last choice is empty.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
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
                models = json.dumps({"data": [{"id": "null"}]})
                text = (METRICS if path == "/metrics" else models).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            await writer.drain()

    async def complete(self, request: dict[str, Any], writer: asyncio.StreamWriter, started_s: float) -> None:
        self.requests += 1
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
            await writer.drain()
        choices = [{"text": ""}] if self.arguments.usage_with_choice else []
        send(writer, {"choices": choices, "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}})
        send(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")


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
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--usage-with-choice", action="store_true")
    arguments = parser.parse_args()
    server = await asyncio.start_server(NullServer(arguments).serve, "127.0.0.1", arguments.port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
