"""Translates kernelspecs of Enterprise Gateway with their pod templates."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .beside import Objects
from .checks import Checker
from .errors import MigrationError
from .files import read_small
from .pod import ROOT, PodConversion
from .podtemplate import Finding, PodTemplate

TEMPLATE = "scripts/kernel-pod.yaml.j2"

CHANGING = ("KERNEL_CPUS", "KERNEL_CPUS_LIMIT", "KERNEL_GID", "KERNEL_GPUS", "KERNEL_GPUS_LIMIT", "KERNEL_MEMORY",
            "KERNEL_MEMORY_LIMIT", "KERNEL_UID")
"""The variables with which clients of ekg change a pod without a policy."""


@dataclass
class Options:
    """How kernelspecs are converted."""

    template: str = ""  # file of the pod template; "": the kernelspec's own
    argv: list[str] = field(default_factory=list)  # of the kernel; empty: that of Enterprise Gateway's images
    keep_launcher: bool = False  # the image's launcher stays; argv is empty


@dataclass
class Converted:
    """A kernelspec for ekg."""

    kernel_json: str
    left_out: list[Finding]  # what has no counterpart, by file and line
    notes: list[str]  # what an operator should know


class KernelFile:
    """A kernel.json of Enterprise Gateway."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = read_small(path)
        try:
            self.values = json.loads(self.text)
        except ValueError as err:
            line = getattr(err, "lineno", 0)
            raise MigrationError(f"{path}:{line}: is not JSON: {getattr(err, 'msg', err)}") from err
        if not isinstance(self.values, dict):
            raise MigrationError(f"{path}: is not an object")
        self.argv: list[str] = self._typed("argv", list, [])
        self.env: dict[str, str] = self._typed("env", dict, {})
        self.language: str = self._typed("language", str, "")
        self.metadata: dict[str, Any] = self._typed("metadata", dict, {})
        for key, values in (("argv", self.argv), ("env", list(self.env.values()))):
            if not all(isinstance(value, str) for value in values):
                raise MigrationError(f"{path}:{self.line_of(key)}: {key}: has values that are no texts")
        if "ekg" in self.metadata:
            raise MigrationError(f"{path}:{self.line_of('ekg')}: it has {ROOT} already")
        proxy = self.metadata.get("process_proxy")
        proxy = proxy if isinstance(proxy, dict) else {}
        config = proxy.get("config")
        self.proxy_class = str(proxy.get("class_name", ""))
        self.image = str(config.get("image_name", "")) if isinstance(config, dict) else ""

    def _typed(self, key: str, kind: type, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise MigrationError(f"{self.path}:{self.line_of(key)}: {key}: has another type than in a kernelspec")
        return value

    def line_of(self, text: str) -> int:
        """Returns the line of a text in quotes, or of the text itself; 0 if it is not there."""
        at = max(self.text.find(json.dumps(text)), -1)
        at = at if at >= 0 else self.text.find(text)
        return 1 + self.text.count("\n", 0, at) if at >= 0 else 0

    def check_class(self) -> None:
        """Refuses a kernelspec that no pod template belongs to."""
        launcher = any("{response_address}" in arg for arg in self.argv)
        pod = self.proxy_class.endswith("KubernetesProcessProxy")
        if pod and any(arg.endswith("/bin/run.sh") for arg in self.argv):
            raise MigrationError(f"{self.path}: it submits a Spark application, which ekg does not do")
        if not launcher:
            raise MigrationError(f"{self.path}: it starts no launcher of Enterprise Gateway, so ekg needs no other "
                                 "kernelspec")
        if not pod:
            raise MigrationError(f'{self.path}: "{self.proxy_class}" starts no pod from a template; ekg kernelspec check '
                                 "says what ekg does with it")

    def command(self, options: Options, left_out: list[Finding]) -> list[str]:
        """Returns the command that starts the kernel in its image."""
        if options.keep_launcher:
            return self.argv
        mode, class_ = self.option("spark-context-initialization-mode"), self.option("kernel-class-name")
        if mode not in ("", "none"):
            left_out.append(Finding(str(self.path), self.line_of(mode),
                                    f"spark-context-initialization-mode {mode}: ekg creates no Spark context"))
        if options.argv:
            return options.argv
        if self.language.lower() == "python":
            argv = ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return [*argv, f"--IPKernelApp.kernel_class={class_}"] if class_ else argv
        if self.language.lower() == "r":
            return ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"]
        raise MigrationError(f'{self.path}: ekg does not know the command of a kernel for "{self.language}"; give it '
                             "with --command, or use --keep-launcher")

    def option(self, name: str) -> str:
        """Returns the value of an option of Enterprise Gateway's launcher."""
        for i, arg in enumerate(self.argv):
            for option in (f"--{name}", f"--RemoteProcessProxy.{name}"):
                if arg == option and i + 1 < len(self.argv):
                    return self.argv[i + 1]
                if arg.startswith(f"{option}="):
                    return arg[len(option) + 1:]
        return ""

    def variables(self, name: str) -> dict[str, str]:
        """Returns the variables of the template that the kernelspec itself sets."""
        found = {"kernel_name": name, "kernel_language": self.language.lower()}
        found.update({key.lower(): value for key, value in self.env.items() if key.startswith("KERNEL_") and value})
        for option, variable in (("spark-context-initialization-mode", "kernel_spark_context_init_mode"),
                                 ("kernel-class-name", "kernel_class_name")):
            if self.option(option):
                found[variable] = self.option(option)
        return found

    def with_ekg(self, argv: list[str], ekg: dict[str, Any]) -> str:
        """Returns the new kernel.json. Keys keep their order."""
        metadata = dict(sorted({**self.metadata, "ekg": _sorted(ekg)}.items()))
        return json.dumps({**self.values, "argv": argv, "metadata": metadata}, indent=2, ensure_ascii=False) + "\n"


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


def convert(folder: Path, options: Options, checker: Checker) -> Converted:
    """Translates the kernelspec in a folder of Enterprise Gateway."""
    name = folder.resolve().name if folder.name in ("", "..") else folder.name
    kernel = KernelFile(folder / "kernel.json")
    kernel.check_class()
    path = Path(options.template) if options.template else folder / TEMPLATE
    text = read_small(path)
    left_out: list[Finding] = []
    argv = kernel.command(options, left_out)
    template = PodTemplate(path, text, kernel.variables(name))
    units, others, variants = template.units()
    units = Objects(template, others, variants, units).add_to(units)
    ekg = PodConversion(template, units).run(checker)
    left_out = sorted(left_out + template.findings, key=lambda finding: (finding.file, finding.line))
    notes = _notes(template, bool(kernel.image or "image" in ekg))
    kernel_json = kernel.with_ekg(argv, ekg)
    for problem in checker.check(name, kernel_json):
        if not problem.key.startswith(ROOT):
            raise MigrationError(f"{kernel.path}:{kernel.line_of(problem.key)}: {problem.key}: {problem.message}")
        notes.append(f"the policy refuses {problem.key}: {problem.message}")
    return Converted(kernel_json, left_out, notes)


def _notes(template: PodTemplate, has_image: bool) -> list[str]:
    """Returns what an operator should know: also variables that have an effect in ekg and none in the template."""
    notes: list[str] = []
    used = template.client_variables()
    unused = [name for name in CHANGING if name.lower() not in used]
    if unused:
        notes.append(f"the template does not use {', '.join(unused)} of clients, and ekg does; clients.allow of the "
                     "policy can leave them out")
    if not has_image:
        notes.append("neither metadata.process_proxy.config.image_name nor the template names an image; --kernel-image "
                     "does")
    return notes


def spec_folders(args: list[str]) -> list[Path]:
    """Returns the folders of kernelspecs in the arguments."""
    folders: list[Path] = []
    for arg in map(Path, args):
        found = [arg] if (arg / "kernel.json").exists() else sorted(file.parent for file in arg.glob("*/kernel.json"))
        if not found:
            raise MigrationError(f"{arg}: has no kernel.json, and no folder with one")
        folders += found
    return folders


def shown_files(folder: Path) -> list[Path]:
    """Returns the files of a kernelspec that its users see."""
    return sorted(file for file in folder.iterdir() if file.is_file() and not file.is_symlink() and (
        file.name.startswith("logo-") or file.name in ("kernel.js", "kernel.css")))


def write(folder: Path, kernel_json: str, output: Path, force: bool) -> None:
    """Writes the kernelspec and copies its logos into a folder of the output."""
    target = output.resolve() / folder.resolve().name
    if target.exists() and not force:
        raise MigrationError(f"{target} exists; --force replaces its files")
    if target.exists() and target.samefile(folder):
        raise MigrationError(f"{target} is the kernelspec itself; choose another --output")
    target.mkdir(parents=True, exist_ok=True)
    for file in shown_files(folder):
        shutil.copyfile(file, target / file.name)
    (target / "kernel.json").write_text(kernel_json, encoding="utf-8")
