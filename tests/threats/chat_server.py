"""An OpenAI-compatible server on the loopback, whose answers are a function of the request."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text):
    """The body of an answer."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "toy",
        "choices": choices,
        "usage": usage,
    }


class ChatServer:
    """Serve ``/v1/chat/completions`` while the block runs.

    Args:
        answer: the text of an answer from the text of the last message.
        fault: a function from the number of the call to the status of an error, or None for an answer.
        seconds: how long every call takes.

    Attributes:
        calls: text and status of each call received.
        base_url: what clients are given.
    """

    def __init__(self, answer, fault=lambda number: None, seconds=0.0):
        self.answer, self.fault, self.seconds = answer, fault, seconds
        self.calls, self.lock = [], threading.Lock()

    def __enter__(self):
        chat = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = body["messages"][-1]["content"]
                with chat.lock:
                    number = len(chat.calls)
                    status = 404 if self.path != "/v1/chat/completions" else chat.fault(number) or 200
                    chat.calls.append((text, status))
                time.sleep(chat.seconds)
                reply = completion(chat.answer(text)) if status == 200 else {"error": {"message": "not now"}}
                content = json.dumps(reply).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    if status == 429:
                        self.send_header("Retry-After", "0.05")
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:  # the client was killed
                    self.close_connection = True

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda request, address: None  # a client that was killed
        self.base_url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
