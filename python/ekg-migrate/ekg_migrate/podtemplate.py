"""A pod template while it is converted: what it gives for all clients, and what depends on a client's variables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import yaml

from .errors import MigrationError
from .template import NOT_KNOWN, Mark, Rendering, Runtime, Template, content, flow_text
from .tree import Tree, read_documents
from .units import CONTAINER, Unit, units_of

RUNTIME = ("kernel_id", "kernel_pod_name", "kernel_namespace", "kernel_service_account_name", "kernel_image",
           "kernel_executor_image", "kernel_username", "response_address", "public_key", "port_range",
           "eg_response_address", "eg_public_key", "eg_port_range")
"""Variables that are known only when a kernel starts, and always set."""

DEFAULTS = {"kernel_uid": "1000", "kernel_gid": "100", "kernel_gateway": "1", "kernel_spark_context_init_mode": "none"}
"""Enterprise Gateway's values of variables that are always set."""

OF_KERNELSPEC = ("kernel_gateway", "kernel_name", "kernel_language", "kernel_class_name",
                 "kernel_spark_context_init_mode")
LISTS = ("kernel_volumes", "kernel_volume_mounts")

OWN_VALUES = {
    "metadata.name": ("kernel_pod_name",),
    "metadata.namespace": ("kernel_namespace",),
    "metadata.labels.kernel_id": ("kernel_id",),
    "spec.serviceAccountName": ("kernel_service_account_name",),
    "spec.serviceAccount": ("kernel_service_account_name",),
    "spec.volumes[]": ("kernel_volumes",),
    "spec.securityContext.runAsUser": ("kernel_uid",),
    "spec.securityContext.runAsGroup": ("kernel_gid",),
    f"{CONTAINER}.name": ("kernel_pod_name",),
    f"{CONTAINER}.image": ("kernel_image",),
    f"{CONTAINER}.workingDir": ("kernel_working_dir",),
    f"{CONTAINER}.volumeMounts[]": ("kernel_volume_mounts",),
    f"{CONTAINER}.securityContext.runAsUser": ("kernel_uid",),
    f"{CONTAINER}.securityContext.runAsGroup": ("kernel_gid",),
    f"{CONTAINER}.resources.requests.cpu": ("kernel_cpus",),
    f"{CONTAINER}.resources.requests.memory": ("kernel_memory",),
    f"{CONTAINER}.resources.requests.nvidia.com/gpu": ("kernel_gpus", "kernel_gpus_limit"),
    f"{CONTAINER}.resources.limits.cpu": ("kernel_cpus_limit",),
    f"{CONTAINER}.resources.limits.memory": ("kernel_memory_limit",),
    f"{CONTAINER}.resources.limits.nvidia.com/gpu": ("kernel_gpus", "kernel_gpus_limit"),
}
"""The places where ekg itself puts what a variable says."""


@dataclass(frozen=True)
class Finding:
    """A line of a template, or of a kernel.json, that has no counterpart in the converted kernelspec."""

    file: str
    line: int  # 0 if it concerns the whole file
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


class PodTemplate:
    """One template, and what was found in it."""

    def __init__(self, path: Path, text: str, variables: dict[str, str]) -> None:
        """The variables are those that the kernelspec itself sets, in lower case."""
        self.template = Template(path, text)
        self.marks = self.template.marks
        self.owned: dict[str, str] = {}  # client variables that ekg applies itself, by the place of the unit
        self.findings: list[Finding] = []
        self.fixed: dict[str, Any] = {name: Runtime(name) for name in RUNTIME}  # in every rendering
        self.fixed.update(DEFAULTS)
        self.fixed.update(variables)
        for name in LISTS:
            if name in variables:
                self.fixed[name] = _list(name, variables[name])

    def note(self, line: int, message: str) -> None:
        """Records a line that has no counterpart, once."""
        finding = Finding(str(self.template.path), line, self.marks.readable(message))
        if finding not in self.findings:
            self.findings.append(finding)

    def documents(self, more: dict[str, Any]) -> tuple[Tree, list[Tree]]:
        """Renders the template with further variables, and returns the pod and what is beside it."""
        docs = read_documents(Rendering(self.template, {**self.fixed, **more}, self.note))
        pod = next((doc for doc in docs if doc.get("kind").text == "Pod"), None)
        if pod is None:
            raise MigrationError(f"{self.template.path}: it gives no object of the kind Pod")
        return pod, [doc for doc in docs if doc is not pod]

    def client_variables(self) -> list[str]:
        """Returns the template's variables that a client may set, in lower case."""
        return [name for name in self.template.names()
                if name.startswith("kernel_") and name not in RUNTIME + OF_KERNELSPEC]

    def units(self) -> tuple[list[Unit], list[Tree], dict[str, list[str]]]:
        """Returns the parts of the pod that hold whatever clients send.

        Returns also the objects beside it, and the same as texts for each variable that a client may send. Notes what
        depends on a client's variables, unless ekg applies the variable there.
        """
        pod, others = self.documents({})
        base = units_of(pod)
        variants: dict[str, list[str]] = {}
        empty: set[tuple[str, str]] = set()
        for name in self.client_variables():
            changed, beside = self.documents({name: Runtime(name, is_list=name in LISTS)})
            variants[name] = [flow_text(doc.plain()) for doc in beside]
            self._compare(base, units_of(changed), name, empty)
        for data in self.template.data():
            if id(data) not in self.template.seen:
                for line, text in content(data):
                    self.note(line, f"{text}: needs several variables of the client at once")
        return [unit for unit in base if unit.same() not in empty], others, variants

    def _compare(self, base: list[Unit], changed: list[Unit], name: str, empty: set[tuple[str, str]]) -> None:
        """Notes what a client's variable changes. Adds units to empty that say nothing without it."""
        variable = name.upper()
        in_base, in_changed = {unit.same() for unit in base}, {unit.same() for unit in changed}
        replaced: dict[str, bool] = {}
        for unit in changed:
            if unit.same() in in_base:
                continue
            own = self.own_variable(unit) == name
            replaced[unit.place()] = own
            if own:
                self.owned[unit.at] = variable
            else:
                self.note(unit.line, f"{unit.label()}: depends on {variable} of the client, which ekg does not apply here")
        for unit in base:
            is_variable = unit.at == f"{CONTAINER}.env[]"
            if unit.same() in in_changed:
                continue
            if unit.place() in replaced and (is_variable or not unit.at.endswith("[]")):
                if unit.is_empty() and (replaced[unit.place()] or not is_variable):
                    empty.add(unit.same())
            else:
                self.note(unit.line, f"{unit.label()}: does not hold if the client sends {variable}; here it always holds")

    def own_variable(self, unit: Unit) -> str:
        """Returns the variable whose value ekg puts at the unit's place by itself, or ""."""
        if unit.at == f"{CONTAINER}.env[]":  # clients' variables are part of a kernel's environment
            name = self.marks.exactly(unit.value.get("value").value)
            return name if name.upper() == unit.value.get("name").text else ""
        name = self.marks.exactly(unit.value.value)
        return name if name in OWN_VALUES.get(unit.at, ()) else ""

    def fill_marks(self, value: Tree, stands: Callable[[str, str], str]) -> str:
        """Replaces the marks in a value by what stands for their variables there.

        stands is given the path of a text in the value, and a variable. Returns why a mark cannot be replaced, or "".
        """
        whys: list[str] = []

        def fill(path: str, text: str) -> str:
            def one(word: Any) -> str:
                mark: Mark = self.marks.of(word)
                replacement = stands(path, mark.name) if mark.name else ""
                if not replacement:
                    whys.append(f"has {{{{ {mark.name} }}}}, which a kernelspec cannot have there" if mark.name
                                else mark.why or NOT_KNOWN)
                return replacement or word[0]

            return self.marks.pattern.sub(one, text)

        value.change_texts(fill)
        return whys[-1] if whys else ""


def _list(name: str, text: str) -> list[Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, list):
        raise MigrationError(f"env.{name.upper()} is not a list in YAML")
    return value
