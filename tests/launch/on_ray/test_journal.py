"""What a driver printed is read line by line, and what is no whole line of ours counts as not said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from elastic_core.launch.on_ray import jobs_api, journal
from elastic_core.launch.on_ray.jobs_api import JobsApi
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.settings import Settings

SAID = ExitReport(kind=ExitKind.FINISHED, exit_codes=(0,))
URL = "http://10.0.0.1:52365/logs/elastic/elastic/7/rank0.log"


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    journal.say_exit(SAID)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        'elastic-journal {"kind": "exit", "va',
        "elastic-journal ",
        "elastic-journal 7",
        "elastic-journal []",
        'elastic-journal {"value": 1}',
        "elastic-journal " + "[" * 100_000,
    ],
)
def test_a_line_that_is_not_whole_or_not_ours_is_passed_over(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert journal.exit_report(printed(capsys) + line + "\n") == SAID
    assert journal.exit_report(line) is None
    assert journal.log_urls(line) == []


@pytest.mark.parametrize("value", ['"done"', "{}", '{"kind": "unheard of"}', "null"])
def test_an_exit_that_is_none_was_not_said(value: str) -> None:
    assert journal.exit_report(f'elastic-journal {{"kind": "exit", "value": {value}}}') is None


@pytest.mark.parametrize(
    "urls", ['"x"', "[1]", f'["{URL}", "file:///etc/passwd"]', '["http://10.0.0.1:8265/api/jobs/"]', f'["{URL}?a"]']
)
def test_a_log_is_read_only_where_a_nodes_agent_serves_logs(urls: str) -> None:
    assert journal.log_urls(f'elastic-journal {{"kind": "logs", "value": ["{URL}"]}}') == [URL]
    assert journal.log_urls(f'elastic-journal {{"kind": "logs", "value": {urls}}}') == []


@contextmanager
def dashboard(answer: bytes) -> Iterator[str]:
    """Answers every request with this; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                self.wfile.write(answer)
            except ConnectionError:  # whoever asks has had enough
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_more_than_any_driver_prints_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "MOST_OUTPUT_BYTES", 1_000)
    token = tmp_path / "token"
    token.write_text("secret")
    for size, read in ((100, "x" * 100), (100_000, "")):
        with dashboard(b'{"logs": "' + b"x" * size + b'"}') as address:
            api = JobsApi(Settings(home=tmp_path, ray_address=address, ray_token_file=token))
            assert api.output("elastic-7") == read
