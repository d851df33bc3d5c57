"""Translates the units of a pod into metadata.ekg."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

from .beside import CONTAINER_LISTS, OWNER, SHORT_NAMES, serves_all, without_object
from .checks import Checker, Problem
from .podtemplate import PodTemplate
from .template import flow_text
from .tree import Tree
from .units import CONTAINER, DIVIDED_MAPS, OBJECTS, PORTS, Unit

ROOT = "metadata.ekg"

ANNOTATION_OWNER = "elastic-kernel-gateway.github.io/owner"

TARGETS = {
    "metadata.labels": "labels",
    "metadata.annotations": "annotations",
    **{f"spec.{key}": key for key in ("affinity", "imagePullSecrets", "nodeSelector", "priorityClassName",
                                      "resourceClaims", "runtimeClassName", "schedulerName", "serviceAccountName",
                                      "terminationGracePeriodSeconds", "tolerations", "volumes")},
    "spec.serviceAccount": "serviceAccountName",
    **{f"spec.{key}": f"pod.spec.{key}" for key in ("activeDeadlineSeconds", "dnsConfig", "dnsPolicy", "hostAliases",
                                                    "hostUsers", "preemptionPolicy", "securityContext",
                                                    "topologySpreadConstraints")},
    **{f"{CONTAINER}.{key}": key for key in ("image", "imagePullPolicy", "env", "lifecycle", "resources.requests",
                                             "resources.limits", "resources.claims", "securityContext", "volumeMounts",
                                             "workingDir")},
    **{f"{CONTAINER}.{key}": f"pod.spec.containers[0].{key}" for key in ("envFrom", "volumeDevices")},
    **{f"spec.securityContext.{key}": f"securityContext.{key}" for key in ("runAsUser", "runAsGroup", "runAsNonRoot",
                                                                           "seccompProfile", "appArmorProfile")},
}
"""The keys of metadata.ekg for those of a pod. Parts that are lists or divided maps keep their entries."""

REFUSALS = {
    "metadata.name": "ekg names pods by the kernel's id",
    "metadata.namespace": "--kube-namespace says where kernels are",
    "spec.initContainers": "is not a list of containers",
    "spec.restartPolicy": "ekg restarts kernels itself",
    "spec.hostNetwork": "kernels have no namespaces of the node",
    "spec.hostPID": "kernels have no namespaces of the node",
    "spec.hostIPC": "kernels have no namespaces of the node",
    f"{CONTAINER}.name": "the kernel's container is named kernel",
    f"{CONTAINER}.command": "argv of the kernelspec is the command",
    f"{CONTAINER}.args": "argv of the kernelspec is the command",
    f"{CONTAINER}.ports": "write metadata.ekg.ports if other pods connect to the kernel",
    "spec.automountServiceAccountToken": "write metadata.ekg.serviceAccountToken if the kernel needs the token",
    "spec.enableServiceLinks": "kernels get no variables of services; name them in env",
}
"""Why keys have no counterpart. Other keys have the text of an unknown key."""

OWN_CONSTANTS: dict[str, object] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata.labels.app": "enterprise-gateway",
    "metadata.labels.component": "kernel",
    "spec.restartPolicy": "Never",
    "spec.enableServiceLinks": False,
    "spec.automountServiceAccountToken": False,
    "metadata.annotations.cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "metadata.annotations.sidecar.istio.io/inject": "false",
    "metadata.labels.sidecar.istio.io/inject": "false",
}
"""Values that every pod of ekg has, or that mean the same as what ekg does."""

FIELD_PATHS = {
    "kernel_id": "metadata.labels['kernel_id']",
    "kernel_pod_name": "metadata.name",
    "kernel_namespace": "metadata.namespace",
    "kernel_service_account_name": "spec.serviceAccountName",
    "kernel_username": f"metadata.annotations['{ANNOTATION_OWNER}']",
}
"""The fields of a pod that have the value of a variable, for env."""

PROTOCOL = ("response_address", "public_key", "port_range", "eg_response_address", "eg_public_key", "eg_port_range",
            "kernel_executor_image")
"""The variables with which Enterprise Gateway and its launchers find each other."""

BESIDE_DROPPED = {
    "ports": "no other pod connects to this container",
    "readinessProbe": "the pod's readiness is the kernel's",
    "terminationMessagePath": "ekg sets it",
    "terminationMessagePolicy": "ekg sets it",
}
"""Why fields of a container beside the kernel's are left out alone. Another field without a counterpart leaves out the
container."""

INHERITED_SECURITY = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "appArmorProfile")
"""Keys of a pod's security context that hold for containers that lack them. In a kernelspec each container has them."""

RESERVED_VOLUMES = re.compile(r"ekg|secret|spill|home|dshm|owner-home|ekg-token|ekg-shared-.*")
RENAMED = "eg-"  # begins the name of a volume whose own name is one of ekg's volumes

MOUNTS = {f"{CONTAINER}.volumeMounts": "", "initContainers[]": ".volumeMounts", "containers[]": ".volumeMounts"}
"""The paths from a place to its mounts of volumes."""


class PodConversion:
    """The conversion of one pod."""

    def __init__(self, template: PodTemplate, units: list[Unit]) -> None:
        self.template = template
        self.units = units

    def run(self, checker: Checker) -> dict[str, Any]:
        """Returns metadata.ekg. Notes what it leaves out, also what ekg refuses whatever the policy allows."""
        placed: list[Unit] = []
        for unit in self.units:
            unit.key = self._place(unit)
            if unit.key:
                placed.append(unit)
        placed = _shared_memory(placed)
        _rename_volumes(placed)
        policy = _permissive(placed)
        while True:
            ekg = _assemble(placed)
            spec = {"argv": ["{connection_file}"], "display_name": "x", "language": "x", "metadata": {"ekg": ekg}}
            refused = self._first_refused(placed, checker.check("converted", flow_text(spec), policy))
            if refused is None:
                return ekg
            placed = [unit for unit in placed if unit is not refused]
            if refused.key == OBJECTS:
                placed = without_object(self.template, placed, refused)

    def _note(self, unit: Unit, why: str, line: int = 0) -> str:
        self.template.note(line or unit.line, f"{unit.label()}: {why}")
        return ""

    def _first_refused(self, placed: list[Unit], problems: list[Problem]) -> Unit | None:
        """Notes the first problem of a kernelspec, and returns the unit that has it."""
        for problem in problems:
            within = [unit for unit in placed if problem.key == f"{ROOT}.{unit.path}"
                      or problem.key.startswith((f"{ROOT}.{unit.path}.", f"{ROOT}.{unit.path}["))]
            # Else the problem is that of a whole, as of resources.
            found = max(within, key=lambda unit: len(unit.path), default=None) or next(
                (unit for unit in placed if f"{ROOT}.{unit.path}".startswith(problem.key)), None)
            if found:
                at = f"{ROOT}.{found.path}"
                inside = (problem.key[len(at):] if problem.key.startswith(at) else problem.key).strip(".")
                self._note(found, f"{inside}: {problem.message}" if inside else problem.message)
                return found
        return None

    def _place(self, unit: Unit) -> str:
        """Returns the key of a unit in metadata.ekg, and changes its value to the one there.

        Returns "" for a unit that ekg needs not be told, and for one that it notes.
        """
        if self.template.own_variable(unit) or _is_own(unit):
            return ""
        if unit.at in (OBJECTS, PORTS):
            return unit.at
        if unit.at in CONTAINER_LISTS:
            return self._container(unit, CONTAINER_LISTS[unit.at])
        at = unit.at[:-2] if unit.at.endswith("[]") else unit.at
        if at == f"{CONTAINER}.ports" and serves_all(unit.value, self.units):
            return ""  # the ports of Services
        if at in REFUSALS:
            return self._note(unit, REFUSALS[at])
        key = TARGETS.get(at, "")
        if not key:
            divided = next((one for one in DIVIDED_MAPS if at.startswith(f"{one}.") and one in TARGETS), "")
            key = TARGETS[divided] + at[len(divided):] if divided else ""
        if not key:
            return self._note(unit, "has no counterpart in metadata.ekg")
        if at.startswith("spec.securityContext.") and any(
                other.at == CONTAINER + at[len("spec"):] for other in self.units):
            return ""  # the container's own value counts
        if unit.at.endswith("[]"):
            key += "[]"
        if at == f"{CONTAINER}.env":
            return self._variable(unit, key)
        return key if self._fill_owner(unit, at) else ""

    def _variable(self, unit: Unit, key: str) -> str:
        """Places an element of env."""
        variable = self.template.marks.exactly(unit.value.get("value").value)
        name = unit.value.get("name").text or ""
        if variable in PROTOCOL or variable == "kernel_username" and name == "KERNEL_USERNAME":
            return ""  # the gateway sets the latter
        if variable in FIELD_PATHS:
            unit.value = _field_variable(unit.line, name, FIELD_PATHS[variable])
            return key
        return key if self._fill_owner(unit, f"{CONTAINER}.env") else ""

    def _fill_owner(self, unit: Unit, at: str) -> bool:
        """Replaces the user's name by its pattern where a kernelspec may have it.

        Notes a unit with another value that is not known before a kernel starts, and returns False.
        """
        everywhere = at in ("spec.volumes", "spec.serviceAccountName", "spec.serviceAccount")
        paths = [MOUNTS[at] + key for key in (".mountPath", ".subPath", ".subPathExpr")] if at in MOUNTS else []
        why = self.template.fill_marks(unit.value, lambda path, variable: OWNER if variable == "kernel_username" and (
            everywhere or path in paths) else "")
        if why:
            self._note(unit, why)
        return not why

    def _container(self, unit: Unit, key: str) -> str:
        """Places a container beside the kernel's."""
        if not isinstance(unit.value.value, dict):
            return self._note(unit, "is not a container")
        for name in list(unit.value.value):
            if name in BESIDE_DROPPED:
                self._note(unit, f"{name}: {BESIDE_DROPPED[name]}", unit.value.get(name).line)
                del unit.value.value[name]
        env = unit.value.get("env")
        if env.items or env.value == []:
            env.value = [item for item in env.items if self._beside_variable(unit, item)]
        if not self._fill_owner(unit, key):
            return ""
        self._inherit_security(unit)
        return key

    def _beside_variable(self, container: Unit, item: Tree) -> bool:
        """Converts a variable of a container beside the kernel's. Reports whether the variable stays."""
        variable = self.template.marks.exactly(item.get("value").value)
        if variable in PROTOCOL:
            return False
        if variable in FIELD_PATHS:
            item.value = _field_variable(item.line, item.get("name").text or "", FIELD_PATHS[variable]).value
            return True
        return self._fill_owner(Unit(f"{container.label()}.env[]", item.line, item), f"{CONTAINER}.env")

    def _inherit_security(self, unit: Unit) -> None:
        """Gives a container what the pod's security context says for containers that say nothing."""
        for key in INHERITED_SECURITY:
            at = f"spec.securityContext.{key}"
            of_pod = next((other for other in self.units if other.at == at), None)
            own = unit.value.get("securityContext")
            if of_pod is None or not own.get(key).is_null:
                continue
            if at in self.template.owned:
                self._note(unit, f"has the pod's {key}, {of_pod.value.value}: {self.template.owned[at]} of the client does "
                           "not change it here")
            unit.value.value["securityContext"] = Tree(unit.line, {**(own.value or {}), key: of_pod.value})


def _is_own(unit: Unit) -> bool:
    own = OWN_CONSTANTS.get(unit.at)
    return own is not None and type(own) is type(unit.value.value) and own == unit.value.value


def _field_variable(line: int, name: str, path: str) -> Tree:
    """Returns a variable of a container whose value is a field of the pod."""
    reference = Tree(line, {"fieldRef": Tree(line, {"fieldPath": Tree(line, path)})})
    return Tree(line, {"name": Tree(line, name), "valueFrom": reference})


def _permissive(placed: list[Unit]) -> str:
    """Returns a policy that refuses only what no policy can allow."""
    capabilities: list[str] = []  # also of containers beside the kernel's
    for unit in placed:
        of = unit.value if unit.key == "securityContext.capabilities" else unit.value.get(
            "securityContext", "capabilities")
        capabilities += [name.text for name in of.get("add").items if name.text is not None]
    return json.dumps({"kernelspecs": {
        "capabilities": capabilities,
        "objects": sorted(SHORT_NAMES),
        "ports": ["1-65535"],
        "secrets": ["*"],
        "serviceTypes": ["ClusterIP", "NodePort", "LoadBalancer"],
        "volumes": ["configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "nfs", "persistentVolumeClaim",
                    "projected", "secret", "csi"],
    }})


def _shared_memory(placed: list[Unit]) -> list[Unit]:
    """Takes a volume in memory that is mounted at /dev/shm for the size of it."""
    mount = next((unit for unit in placed if unit.key == "volumeMounts[]" and posixpath.normpath(
        unit.value.get("mountPath").text or "") == "/dev/shm"), None)
    volume = mount and next((unit for unit in placed if unit.key == "volumes[]"
                             and unit.value.get("name").text == mount.value.get("name").text), None)
    if not volume:
        return placed
    size = volume.value.get("emptyDir", "sizeLimit")
    if volume.value.get("emptyDir", "medium").text != "Memory" or size.is_null:
        return placed  # the check says what is wrong
    volume.key, volume.value = "shmSize", size
    return [unit for unit in placed if unit is not mount]


def _rename_volumes(placed: list[Unit]) -> None:
    """Gives volumes other names whose own names are those of ekg's volumes."""
    named: list[Tree] = []
    for unit in placed:
        if unit.key in ("volumes[]", "volumeMounts[]", "pod.spec.containers[0].volumeDevices[]"):
            named.append(unit.value)
        elif unit.key in CONTAINER_LISTS.values():
            named += unit.value.get("volumeMounts").items
    for tree in named:
        name = tree.get("name")
        if name.text and RESERVED_VOLUMES.fullmatch(name.text):
            name.value = RENAMED + name.text


def _assemble(placed: list[Unit]) -> dict[str, Any]:
    """Builds metadata.ekg, and sets the paths of the units."""
    root: dict[str, Any] = {}
    for unit in placed:
        key = unit.key[:-2] if unit.key.endswith("[]") else unit.key
        *steps, last = _split_key(key)
        at = root
        for step in steps:
            if step.endswith("[0]"):  # the only list is that of containers
                at = at.setdefault(step[:-3], [{"name": "kernel"}])[0]
            else:
                at = at.setdefault(step, {})
        unit.path = key
        if unit.key.endswith("[]"):
            items = at.setdefault(last, [])
            unit.path = f"{key}[{len(items)}]"
            items.append(unit.value.plain())
        else:
            at[last] = unit.value.plain()
    return root


def _split_key(key: str) -> list[str]:
    """Splits a key. Entries of the maps of labels and the like may have dots themselves."""
    for prefix in ("labels", "annotations", "nodeSelector", "resources.requests", "resources.limits",
                   "pod.spec.securityContext", "securityContext"):
        if key.startswith(f"{prefix}."):
            return [*prefix.split("."), key[len(prefix) + 1:]]
    return key.split(".")
