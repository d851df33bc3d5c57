"""Writes settings of Enterprise Gateway as a configuration file of ekg, or as values for its Helm chart."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Callable

from .config import TABLE, Given, Import, Value
from .files import printable, to_yaml

MAX_ID = 2**31 - 1
"""The largest id of a user or group in Kubernetes."""

CHART_VALUES = {
    "kube-namespace": "kernels.namespace stands for it. By default that is the release's namespace with -kernels",
    "tls-cert": "tls.existingSecret stands for it: a secret with certificate and key",
    "tls-key": "tls.existingSecret stands for it: a secret with certificate and key",
}
"""The settings that ekg's chart sets itself, and which of its values stand for them."""

LEVELS = ("debug", "info", "warn", "error", "warning", "critical", "10", "20", "30", "40", "50")
TRUE, FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
DURATION = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+|[+-]?0")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _count(text: str) -> str:
    ok = re.fullmatch(r"-?[0-9]+", text) and int(text) < 2**31
    return "" if ok else f"{_quoted(text)} is not a number from 0 on"


def _seconds(text: str) -> str:
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return "" if int(text) < 2**63 // 10**9 else f"{_quoted(text)} is more seconds than can be counted"
    if not DURATION.fullmatch(text):
        return f"{_quoted(text)} is neither a duration like 1h, 90m or 1h30m nor a number of seconds"
    return f"{_quoted(text)} is negative" if text.startswith("-") else ""


def _listen(text: str) -> str:
    port = text.rpartition(":")[2]
    return "" if re.fullmatch(r"[0-9]+", port) and int(port) < 2**16 else f"{_quoted(text)} has no port from 0 to 65535"


def _name(text: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) else (
        f"{_quoted(text)} is not the name of an environment variable")


def _filled(text: str) -> str:
    return "" if text else "is empty"


CHECKS: dict[str, Callable[[str], str]] = {
    "allow-origin": _filled,
    "allowed-kernelspec": _filled,
    "authorized-user": _filled,
    "client-env": _filled,
    "cull-busy": lambda text: "" if text in TRUE + FALSE else f"{_quoted(text)} is not true or false",
    "cull-connected": lambda text: "" if text in TRUE + FALSE else f"{_quoted(text)} is not true or false",
    "cull-idle-timeout": _seconds,
    "inherit-env": _name,
    "listen": _listen,
    "log-level": lambda text: "" if text.lower() in LEVELS else f"{_quoted(text)} is not debug, info, warn or error",
    "max-kernels": _count,
    "max-kernels-per-user": _count,
    "unauthorized-user": _filled,
}
"""Return why ekg rejects a value, or "". A test of ekg loads what is written."""

LISTS = ("allow-origin", "allowed-kernelspec", "authorized-user", "client-env", "inherit-env", "unauthorized-user")
"""The settings of ekg that are lists."""


def _line(setting: str, texts: list[str]) -> str:
    """Returns the line of a configuration file for a setting. Raises ValueError if ekg does not accept the value."""
    if any(unicodedata.category(char) in ("Cc", "Cs") for text in texts for char in text):
        raise ValueError("has line breaks or other characters that cannot be printed")
    for text in texts:
        why = CHECKS.get(setting, lambda _: "")(text)
        if why:
            raise ValueError(why)
    if setting in ("cull-busy", "cull-connected"):
        return f"{setting}: {'true' if texts[0] in TRUE else 'false'}"
    return f"{setting}: {to_yaml(texts if setting in LISTS else texts[0], flow=True)}"


def _converted(setting: str, value: Value) -> tuple[list[str], str]:
    """Returns the texts of a setting for an option's value, and a remark; without texts, the remark says why."""
    if setting == "client-env" and "*" in value.texts:
        return [], "ekg has no pattern for all variables; name those that clients may set"
    if setting in ("authorized-user", "unauthorized-user"):
        return value.texts, "needs users-file, oidc-issuer, auth-token-review or hub-api-url"
    if setting == "stop-grace":
        try:
            seconds = float(value.texts[0])
        except ValueError:
            seconds = 0
        if not 0 < seconds < math.inf:
            return [], "is not a number of seconds above 0"
        return [f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"], ""
    return value.texts, ""


def _prohibited(key: str, value: Value) -> str:
    """Explains a list of prohibited ids: the ranges of ids that the policy's key must have."""
    where = f"clients.{key} in the file of --kube-policy, policy.clients.{key} of the chart,"
    texts = [text.strip() for text in ",".join(value.texts).split(",") if text.strip()]
    if not all(re.fullmatch(r"[+-]?[0-9]+", text) for text in texts):
        return f"{where} has the allowed ids; the prohibited ones are not a list of numbers here"
    allowed: list[str] = []
    first = 0
    for one in [*sorted({int(text) for text in texts if 0 <= int(text) <= MAX_ID}), MAX_ID + 1]:
        if first < one:
            allowed.append(str(first) if first == one - 1 else f"{first}-{one - 1}")
        first = one + 1
    ranges = f"[{', '.join(allowed)}]"
    if ranges == f"[1-{MAX_ID}]":
        return f"has its effect without a setting: {where} is {ranges} unless it is set"
    return f"{where} must be {ranges}. Now it is [1-{MAX_ID}] unless it is set"


def _reason(one: Given) -> str:
    """Says why an option has no counterpart, or what to use instead."""
    if one.name == "EG_PROHIBITED_UIDS":
        return _prohibited("userIDs", one.value)
    if one.name == "EG_PROHIBITED_GIDS":
        return _prohibited("groupIDs", one.value)
    if one.name == "EG_DEFAULT_KERNEL_SERVICE_ACCOUNT_NAME":
        if one.value.texts == ["default"]:
            return ("kernels of ekg have this account, too, unless metadata.ekg.serviceAccountName of a kernelspec names "
                    "another")
        return "kernels have the account default unless metadata.ekg.serviceAccountName of a kernelspec names another"
    return one.option.get("why") or TABLE["reasons"][one.option["reason"]]


@dataclass
class Output:
    """A configuration file that is being written.

    The value of an option without a counterpart is not written, since it may be a secret.
    """

    token_file: str  # holds the token; "" leaves it to the operator
    chart: bool = False  # values for the chart
    lines: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # settings that other values of the chart stand for, and which
    service: str = ""  # lines of the chart's value service
    settings: int = 0  # how many there are
    unmatched: int = 0  # options without a counterpart, or with a value that ekg rejects
    unreadable: int = 0  # lines that could not be read

    def write(self, found: Import) -> str:
        """Returns the file."""
        counts, overridden = found.chosen()
        self._listen([one for one in counts if one.setting == "listen"])
        for one in counts:
            if one.setting == "token":
                self._token(one)
            elif one.setting not in ("", "listen"):
                self._setting(one)
        self._defaults({one.setting for one in counts if not one.is_unset})
        self._section("Not in this file:", self.others)
        self._section("Overridden in Enterprise Gateway, too:", [f"{one.place}: {one.name}" for one in overridden])
        unmatched = [f"{one.place}: {one.name}: {_reason(one)}" for one in counts if not one.setting] + self.rejected
        self._section("Without a counterpart:", unmatched)
        self._section("Not read:", found.unread)
        self.unmatched, self.unreadable = len(unmatched), len(found.unread)
        return self._values() if self.chart else "".join(f"{line}\n" for line in self.lines)

    def _comment(self, text: str) -> None:
        self.lines.append(f"# {printable(text)}")

    def _section(self, heading: str, texts: list[str]) -> None:
        if texts:
            self.lines.append("")
            for text in [heading, *texts]:
                self._comment(text)

    def _add(self, setting: str, texts: list[str], source: str, remark: str = "") -> None:
        """Adds one setting if ekg accepts its value."""
        try:
            line = _line(setting, texts)
        except ValueError as err:
            self.rejected.append(f"{source}: {setting} {err}")
            return
        self.settings += 1
        if self.chart and setting in CHART_VALUES:
            self.others.append(f"{source}: {CHART_VALUES[setting]}")
            return
        self.lines.append(f"{line:<40} # {printable(f'{source}; {remark}' if remark else source)}")

    def _setting(self, one: Given) -> None:
        source = f"{one.place}: {one.name}"
        if one.is_unset:
            return  # in Enterprise Gateway, too
        if one.value.is_list and not one.option.get("list"):
            self.rejected.append(f"{source} is not a single value")
            return
        texts, remark = _converted(one.setting, one.value)
        if not texts:
            self.rejected.append(f"{source}: {remark}")
            return
        self._add(one.setting, texts, source, remark)

    def _listen(self, counts: list[Given]) -> None:
        """Joins address and port. Gateways in the chart listen on all addresses of their pods."""
        ip, port = "127.0.0.1", "8888"
        sources: list[str] = []
        for one in counts:
            if one.value.is_none or one.value.is_list:
                continue
            if "ip" in one.option["traits"]:
                ip = one.value.texts[0].strip("[]")
                ip = "0.0.0.0" if ip in ("", "*") else ip
            else:
                port = one.value.texts[0]
            sources.append(f"{one.place}: {one.name}")
        source = ", ".join(sources)
        if not sources:
            return
        if not self.chart:
            self._add("listen", [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"], source)
        elif not re.fullmatch(r"[0-9]+", port) or not 0 < int(port) < 2**16:
            self.rejected.append(f"{source}: is not a port")
        else:
            self.service = f"service:\n  port: {int(port):<34} # {printable(source)}\n"
            self.settings += 1

    def _token(self, one: Given) -> None:
        """Says where the token is, and never writes the token itself."""
        source = f"{one.place}: {one.name}"
        if one.is_unset or one.value.is_list:
            return
        if self.chart:
            how = f"helm install --set-file authToken={self.token_file or 'FILE'} reads it"
            how += "" if self.token_file else ". --token-file FILE of this command writes it"
            self.others.append(f"{source}: is a secret and is not written here; {how}")
            self.settings += 1
        elif self.token_file:
            self._add("token-file", [self.token_file], source)
        else:
            self._comment(f"token-file: FILE  # {source} is a secret and is not written here. --token-file FILE of this "
                          "command")
            self._comment("writes it to a file that only you can read. Until then ekg generates a token of its own.")

    def _defaults(self, given: set[str]) -> None:
        """Writes what differs where nothing is set."""
        if "cull-idle-timeout" in given and "cull-connected" not in given:
            self._add("cull-connected", ["false"], "Enterprise Gateway's default; ekg's is true")
        if "token" not in given:
            self._comment("No token was given, so Enterprise Gateway accepts every request. ekg generates a token. Clients "
                          "need it.")
        if not self.chart and given & {"kube-namespace", "kernel-image"}:
            self._comment("For kernels in pods, set also launcher: kubernetes and supervisor-image. See docs/kubernetes.md.")

    def _values(self) -> str:
        """Makes values of the chart of the lines of a configuration file."""
        if all(line == "" or line.startswith("#") for line in self.lines):
            return self.service + "settings: {}\n" + "".join(f"{line}\n" for line in self.lines)
        return self.service + "settings:\n" + "".join(f"  {line}\n" if line else "\n" for line in self.lines)
