"""Asks ekg itself what is wrong with a kernelspec: ``ekg kernelspec check``."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import MigrationError, UsageError


@dataclass(frozen=True)
class Problem:
    """A value of a kernel.json that ekg refuses."""

    key: str
    message: str


class Checker:
    """Runs ekg. The policy is the operator's; "" leaves it to ekg's own settings."""

    def __init__(self, program: str, policy: str) -> None:
        self.program = program
        self.policy = policy

    def check(self, name: str, kernel_json: str, policy: str | None = None) -> list[Problem]:
        """Returns the problems of a kernel.json, without warnings and without those of its program.

        The policy is the text of another one than the operator's.
        """
        with tempfile.TemporaryDirectory(prefix="ekg-migrate-") as temporary:
            folder = Path(temporary, name)
            folder.mkdir()
            (folder / "kernel.json").write_text(kernel_json, encoding="utf-8")
            policy_file = self.policy
            if policy is not None:
                policy_file = str(Path(temporary, "policy.json"))
                Path(policy_file).write_text(policy, encoding="utf-8")
            return self._run(folder, policy_file)

    def _run(self, folder: Path, policy_file: str) -> list[Problem]:
        command = [self.program, "kernelspec", "check", "--output", "json"]
        if policy_file:
            command += ["--kube-policy", policy_file]
        # An image that is missing is no fault here: a note says if none is named.
        env = {"EKG_KERNEL_IMAGE": "ekg", "EKG_SUPERVISOR_IMAGE": "ekg", **os.environ}
        try:
            done = subprocess.run([*command, str(folder)], env=env, capture_output=True, text=True, check=False)
        except OSError as err:
            raise UsageError(f"ekg checks what is converted, and {self.program} cannot be run: {err.strerror}; --ekg "
                             "names the program") from err
        try:
            found = json.loads(done.stdout)
        except ValueError as err:
            raise (UsageError if done.returncode == 2 else MigrationError)(
                f"{self.program} kernelspec check: {done.stderr.strip() or done.stdout.strip()}") from err
        return [Problem(one["key"], one["message"]) for one in found
                if not one["warning"] and not one["key"].startswith("argv")]
