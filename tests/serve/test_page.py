"""The page for people, in a real browser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.servers import as_json, put, serving, sums, sums_request

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_a_browser_shows_it(tmp_path: Path) -> None:
    folder, picture = tmp_path / "models", tmp_path / "page.png"
    put(sums(), folder / "sums.tscpack", "requests = 7")
    (folder / "sums.html").write_text("<!doctype html><title>where it is fast</title>", encoding="utf-8")
    (folder / "broken.tscpack").write_bytes(b"none")
    with serving(folder, tmp_path / "log") as server:
        for length in (3, 5, 5):
            assert server.ask("POST", "/v2/models/sums/infer", as_json(sums_request(length)))[0] == 200
        command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
                   "--virtual-time-budget=3000"]
        url = f"http://127.0.0.1:{server.port}/"
        shown = subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True).stdout
        for expected in ("3, 0 of them now; 2 shapes", "ids: int64[batch, seq]", "batch, seq", ">ready<", "shape coverage",
                         "broken 1:", f"<td>{server.workers()[0]}</td>"):
            assert expected in shown, shown
        subprocess.run([*command, f"--screenshot={picture}", "--window-size=900,700", url], capture_output=True, timeout=120,
                       check=True)
        assert picture.stat().st_size > 5000
        assert b"where it is fast" in server.ask("GET", "/coverage/sums")[1]
