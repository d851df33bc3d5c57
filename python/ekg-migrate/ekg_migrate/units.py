"""Parts of a pod that are converted or left out as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from .template import flow_text
from .tree import Tree

CONTAINER = "spec.containers[0]"
"""The place of the kernel's container in a pod."""

OBJECTS, PORTS = "objects[]", "ports[]"
"""Places of units that are not in the template's pod: its other objects, and the ports to which Services lead."""

DIVIDED_MAPS = ("metadata.labels", "metadata.annotations", "spec.nodeSelector", "spec.securityContext",
                f"{CONTAINER}.securityContext", f"{CONTAINER}.resources.requests", f"{CONTAINER}.resources.limits")
DIVIDED_LISTS = ("spec.volumes", "spec.tolerations", "spec.imagePullSecrets", "spec.hostAliases",
                 "spec.resourceClaims", "spec.topologySpreadConstraints", "spec.initContainers",
                 *(f"{CONTAINER}.{key}" for key in ("env", "envFrom", "volumeMounts", "volumeDevices")))
ENCLOSING = ("", "metadata", "spec", "spec.containers", CONTAINER, f"{CONTAINER}.resources")


@dataclass
class Unit:
    """An entry of a map such as the labels, an element of a list such as the volumes, or the value of another key."""

    at: str  # in the pod: spec.nodeSelector.disk, spec.volumes[], spec.affinity
    line: int
    value: Tree
    key: str = ""  # in metadata.ekg: resources.limits.cpu, volumes[]
    path: str = ""  # the same with the number of a list's element

    def same(self) -> tuple[str, str]:
        """Identifies the unit in two renderings."""
        return self.at, flow_text(self.value.plain())

    def place(self) -> str:
        """Identifies what the unit sets: two with the same place replace each other."""
        return self.at + (self.value.get("name").text or "") if self.at == f"{CONTAINER}.env[]" else self.at

    def is_empty(self) -> bool:
        """Reports whether the unit says nothing until the client sends a variable."""
        value = self.value.get("value") if self.at == f"{CONTAINER}.env[]" else self.value
        return value.is_null or value.text == ""

    def label(self) -> str:
        """Names the unit in a sentence."""
        if self.at == OBJECTS:
            return f"an object {self.value.get('kind').value}"
        at = self.at[:-2] if self.at.endswith("[]") else self.at
        for key in ("name", "mountPath", "key"):
            value = self.value.get(key).value
            if value is not None and not isinstance(value, (dict, list)):
                return f"{at} {value}"
        return at


def units_of(pod: Tree) -> list[Unit]:
    """Divides a pod. Keys without a value are left out."""
    units: list[Unit] = []

    def walk(at: str, line: int, tree: Tree) -> None:
        if tree.is_null:
            return
        if isinstance(tree.value, dict) and at in ENCLOSING + DIVIDED_MAPS:
            for key, value in tree.value.items():
                walk(f"{at}.{key}" if at else key, value.line, value)
        elif at == "spec.containers" and tree.items:
            walk(CONTAINER, tree.items[0].line, tree.items[0])
            units.extend(Unit(at, item.line, item) for item in tree.items[1:])
        elif isinstance(tree.value, list) and at in DIVIDED_LISTS:
            units.extend(Unit(f"{at}[]", item.line, item) for item in tree.items)
        else:
            units.append(Unit(at, line, tree))

    walk("", pod.line, pod)
    return units
