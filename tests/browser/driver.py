"""A small WebDriver client: starts Debian's chromedriver and speaks its HTTP, so that no package is needed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)
PATIENCE = 120


class Browser:
    """A headless Chromium with a profile of its own. Use it as a context manager."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="fedpace-browser-")
        self._driver = subprocess.Popen(
            [str(shutil.which("chromedriver")), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            self._root = self._started()
            self._session = self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call("DELETE", self._session)
        self.close()

    def close(self) -> None:
        """End what was started here, and remove the profile."""
        self._driver.terminate()
        self._driver.wait(PATIENCE)
        if self._driver.stdout is not None:
            self._driver.stdout.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _started(self) -> str:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return f"http://127.0.0.1:{found[1]}"
        raise RuntimeError("chromedriver ended before it listened")

    def _begin(self) -> str:
        options = {"args": [*FLAGS, f"--user-data-dir={self._profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        return f"/session/{found['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._root + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]

    def cdp(self, command: str, **arguments: Any) -> Any:
        """Call the browser's own protocol."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": arguments})

    def open(self, path: Path, *, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        """Show a file on a screen of that size, and forget what was logged before."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])
        self.console()
        self._call("POST", f"{self._session}/url", {"url": path.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns; `arguments` are the script's."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> None:
        """Wait until a script returns something true."""
        waiting = (
            "const [source, done] = arguments; const check = new Function(source);"
            "const began = performance.now();"
            "(function look() { if (check()) done(true); else if (performance.now() - began > 60000) done(false);"
            " else setTimeout(look, 20); })();"
        )
        self._call("POST", f"{self._session}/timeouts", {"script": 90_000})
        found = self._call("POST", f"{self._session}/execute/async", {"script": waiting, "args": [script]})
        assert found, f"never came true: {script}"

    def keys(self, *keys: str) -> None:
        """Press keys, one after the other."""
        pressed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        actions = {"actions": [{"type": "key", "id": "keyboard", "actions": pressed}]}
        self._call("POST", f"{self._session}/actions", actions)

    def console(self) -> list[dict[str, Any]]:
        """Return what the console said since it was last asked."""
        found: list[dict[str, Any]] = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return found

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        picture = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True, **self._whole())
        path.write_bytes(base64.b64decode(picture["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.cdp("Page.printToPDF", printBackground=False)["data"])

    def _whole(self) -> dict[str, Any]:
        size = self.cdp("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "scale": 1}}
