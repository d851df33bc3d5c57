"""The objects that a template has beside the pod, and what refers to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable

from .podtemplate import PodTemplate
from .template import flow_text
from .tree import Tree
from .units import CONTAINER, OBJECTS, PORTS, Unit

OWNER = "{owner}"
"""Stands for the kernel's owner in a kernelspec."""

SHORT_NAMES = {"ConfigMap": "config", "PersistentVolumeClaim": "claim", "Secret": "secret", "Service": "service"}
"""The names of objects whose names in the template say only which kernel they belong to, by their kinds. A kernelspec
has no objects of other kinds."""

MAX_SHORT_NAME = 20  # 22 in a kernelspec, of which a number may need two

CONTAINER_LISTS = {"spec.initContainers[]": "initContainers[]", "spec.containers": "containers[]"}
"""The keys of metadata.ekg for containers beside the kernel's, by the place of a unit."""

REFERENCES = ((".claimName", "PersistentVolumeClaim"), (".secretName", "Secret"), (".secret.name", "Secret"),
              (".secretRef.name", "Secret"), (".secretKeyRef.name", "Secret"), (".configMap.name", "ConfigMap"),
              (".configMapRef.name", "ConfigMap"), (".configMapKeyRef.name", "ConfigMap"))
"""The ends of paths to names of objects, and the kinds of these objects."""

MARKS = {"kernel_username": OWNER, "kernel_id": "{kernel_id}", "kernel_namespace": "{namespace}"}
"""What stands in an object for the values of variables."""

HOST_NAME = re.compile(r"([\w-]+)(\.|:\d+\b)?", re.ASCII)
"""Matches a whole name in a text, marks included, and what follows it if it is a host's."""


@dataclass
class Beside:
    """An object beside the pod."""

    kind: str
    name: str  # in the template, with marks
    short: str  # in the kernelspec
    doc: Tree
    gone: bool  # left out, and noted

    @property
    def service_mark(self) -> str:
        """What stands for the name of a Service in texts of a kernelspec."""
        return f"{{service.{self.short}}}"


def referred_kind(unit: Unit, path: str) -> str:
    """Returns the kind of the object that the text at a path within a unit names, or ""."""
    if unit.at == "spec.imagePullSecrets[]" and path == ".name":
        return "Secret"
    return next((kind for end, kind in REFERENCES if path.endswith(end)), "")


def needs_gone(what: str, kind: str, name: str) -> str:
    """Says why something is left out with an object."""
    return f"{what}: needs the {kind} {name}, which is left out"


class Objects:
    """The objects beside the pod of one template."""

    def __init__(self, pod: PodTemplate, docs: list[Tree], variants: dict[str, list[str]], units: list[Unit]) -> None:
        """Notes objects that no kernelspec can have. Those to which the pod may refer are gone then."""
        self.pod = pod
        self.all: list[Beside] = []
        existing = self._existing(docs, units)
        for doc in docs:
            kind, name = doc.get("kind").text or "", doc.get("metadata", "name").text
            if not kind:
                pod.note(doc.line, "an object without a kind")
            elif kind not in SHORT_NAMES or doc.get("apiVersion").text != "v1":
                pod.note(doc.line, f"an object {kind}: ekg creates none with a kernel; create it once, or for each user "
                         "beforehand")
            elif name is None:
                pod.note(doc.line, f"an object {kind}: has no name")
            else:
                text = flow_text(doc.plain())
                changing = min((v for v, texts in variants.items() if text not in texts), default="")
                if changing:
                    pod.note(doc.line, f"an object {kind}: depends on {changing.upper()} of the client, which ekg does not "
                             "apply here")
                self.all.append(Beside(kind, name, self._short_name(name, kind, existing), doc, bool(changing)))

    @staticmethod
    def _existing(docs: list[Tree], units: list[Unit]) -> set[tuple[str, str]]:
        """Returns the objects that the pod refers to and that are not in the template.

        A kernelspec refers to its own objects and to others by name alone. So none of its own may have such a name.
        """
        referred = {(referred_kind(unit, path), text) for unit in units for path, text in unit.value.texts()}
        own = {(doc.get("kind").text, doc.get("metadata", "name").text) for doc in docs}
        return {pair for pair in referred if pair[0] and pair not in own}

    def _short_name(self, name: str, kind: str, existing: set[tuple[str, str]]) -> str:
        """Returns the name of an object in the kernelspec: what its name has besides the kernel's."""
        short = re.sub(r"[^a-z0-9]+", "-", self.pod.marks.pattern.sub("-", name).lower()).strip("-")
        short = short[:MAX_SHORT_NAME].rstrip("-")
        if not short or short[0] < "a":
            short = SHORT_NAMES[kind]
        taken = existing | {(other.kind, other.short) for other in self.all}
        number, free = 2, short
        while (kind, free) in taken:
            free, number = f"{short}{number}", number + 1
        return free

    def add_to(self, units: list[Unit]) -> list[Unit]:
        """Returns the units of the pod and of the objects. The pod refers to the objects by their short names.

        A reference to an object that is left out is left out, too.
        """
        services = self._service_marks()
        for one in self.all:
            one.gone = one.gone or not self._fill(one, services)
        while self._leave_out_naming():
            pass  # until no other object names one that is gone
        kept: list[Unit] = []
        for unit in units:
            needs = self._refer(unit, services)
            if needs:
                self.pod.note(unit.line, needs_gone(unit.label(), needs.kind, needs.name))
            else:
                kept.append(unit)
        ports: set[str] = set()
        for one in self.all:
            if one.gone:
                continue
            for open_port in service_ports(one.doc, kept) if one.kind == "Service" else []:
                if flow_text(open_port.value.plain()) not in ports:
                    ports.add(flow_text(open_port.value.plain()))
                    kept.append(open_port)
            kept.append(Unit(OBJECTS, one.doc.line, one.doc))
        return kept

    def _service_marks(self) -> Callable[[str], str]:
        """Returns a function that replaces the names of Services in a text.

        Only whole names are replaced: that of one Service can begin with that of another. A name may be one mark alone,
        as the kernel's id. It means the Service only as a host, before a domain or a port.
        """
        pattern = self.pod.marks.pattern
        marks: dict[str, str] = {}
        for one in self.all:
            if one.kind == "Service" and pattern.search(one.name):
                marks.setdefault(one.name, one.service_mark)

        def replace(found: re.Match[str]) -> str:
            name, after = found[1], found[2] or ""
            if name not in marks or not after and pattern.fullmatch(name):
                return found[0]
            return marks[name] + after

        return lambda text: HOST_NAME.sub(replace, text)

    def _gone_service(self, text: str) -> Beside | None:
        """Returns the Service that a text names although it is gone."""
        return next((o for o in self.all if o.gone and o.kind == "Service" and o.service_mark in text), None)

    def _leave_out_naming(self) -> bool:
        """Leaves out objects in whose texts are Services that are gone. Reports whether there were some."""
        some = False
        for one in self.all:
            needs = None if one.gone else self._gone_service(flow_text(one.doc.plain()))
            if needs:
                self.pod.note(one.doc.line, needs_gone(f"an object {one.kind}", needs.kind, needs.name))
                one.gone = some = True
        return some

    def _refer(self, unit: Unit, services: Callable[[str], str]) -> Beside | None:
        """Writes the short names of objects into a unit. Returns an object that the unit needs and that is gone."""
        env = unit.at == f"{CONTAINER}.env[]" or unit.at in CONTAINER_LISTS
        needs: list[Beside] = []

        def change(path: str, text: str) -> str:
            kind = referred_kind(unit, path)
            for one in self.all:
                if one.kind == kind and one.name == text:
                    if one.gone:
                        needs.insert(0, one)
                    return one.short
            if env and path.endswith(".value"):
                text = services(text)
                gone = self._gone_service(text)
                if gone:
                    needs.append(gone)
            return text

        unit.value.change_texts(change)
        return needs[0] if needs else None

    def _fill(self, one: Beside, services: Callable[[str], str]) -> bool:
        """Makes an object of the template one of a kernelspec.

        Notes an object with another value that is not known before a kernel starts, and returns False.
        """
        marks, metadata = self.pod.marks, one.doc.get("metadata").value
        metadata["name"] = Tree(metadata["name"].line, one.short)
        if "namespace" in metadata and marks.exactly(metadata["namespace"].value) == "kernel_namespace":
            del metadata["namespace"]
        labels = one.doc.get("metadata", "labels")
        if isinstance(labels.value, dict):  # ekg labels objects as the kernel's pod
            labels.value = {key: v for key, v in labels.value.items() if not (v.text and marks.pattern.search(v.text))}
        spec = one.doc.get("spec")
        if one.kind == "Service" and isinstance(spec.value, dict):
            spec.value.pop("selector", None)  # a kernel's Service selects the kernel's pod
        one.doc.change_texts(lambda _, text: services(text))
        why = self.pod.fill_marks(one.doc, lambda _, variable: MARKS.get(variable, ""))
        if why:
            self.pod.note(one.doc.line, f"an object {one.kind}: {why}")
        return not why


def service_ports(service: Tree, units: list[Unit]) -> list[Unit]:
    """Returns the ports of the kernel to which a Service leads."""
    ports: list[Unit] = []
    declared = [port for unit in units if unit.at == f"{CONTAINER}.ports" for port in unit.value.items]
    for port in service.get("spec", "ports").items:
        target = port.get("port") if port.get("targetPort").is_null else port.get("targetPort")
        open_port: dict[str, Tree] = {}
        if target.text is not None:
            open_port["name"] = target
            numbers = [one.get("containerPort") for one in declared if one.get("name").text == target.text]
            target = numbers[-1] if numbers else Tree(port.line)
        if target.is_null:
            continue  # the check says what is wrong
        open_port["containerPort"] = target
        if not port.get("protocol").is_null:
            open_port["protocol"] = port.get("protocol")
        ports.append(Unit(PORTS, port.line, Tree(port.line, open_port)))
    return ports


def serves_all(declared: Tree, units: list[Unit]) -> bool:
    """Reports whether Services lead to all ports of a container."""
    open_ports = [unit.value.get("containerPort").value for unit in units if unit.at == PORTS]
    return all(port.get("containerPort").value in open_ports for port in declared.items)


def without_object(pod: PodTemplate, units: list[Unit], gone: Unit) -> list[Unit]:
    """Leaves out what refers to an object that was left out, and notes it.

    That may be other objects, to which the same applies.
    """
    kind, short = gone.value.get("kind").text or "", gone.value.get("metadata", "name").text or ""
    kept: list[Unit] = []
    objects: list[Unit] = []
    for unit in units:
        refers = any(
            unit.key != OBJECTS and referred_kind(unit, path) == kind and text == short
            or kind == "Service" and f"{{service.{short}}}" in text
            for path, text in unit.value.texts()
        )
        if not refers:
            kept.append(unit)
            continue
        pod.note(unit.line, needs_gone(unit.label(), kind, short))
        if unit.key == OBJECTS:
            objects.append(unit)
    for one in objects:
        kept = without_object(pod, kept, one)
    return kept
