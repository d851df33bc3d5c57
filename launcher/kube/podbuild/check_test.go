package podbuild

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// strictPolicy allows one thing of each kind, so that a message can show it.
const strictPolicy = `
nonRoot: true
kernelspecs:
  images: [ok/*]
  secrets: [listed]
  configMaps: [listed]
  imagePullSecrets: [listed, "ekg-*"]
  persistentVolumeClaims: [listed]
  serviceAccounts: [listed]
  priorityClasses: [listed, system-*]
  runtimeClasses: [listed]
  schedulers: [listed]
  nodeSelectorKeys: [ok/*]
  capabilities: [SYS_NICE]
  userIDs: [0, 1000-70000]
  groupIDs: [100]
  maxima: {cpu: 2, "*/gpu": 1}
  ports: [7000-7999, 8889]
  serviceAccountTokens: [spark]
clients:
  allow: [KERNEL_IMAGE, KERNEL_NAMESPACE, KERNEL_SERVICE_ACCOUNT_NAME, KERNEL_UID, KERNEL_GID,
    KERNEL_VOLUMES, KERNEL_VOLUME_MOUNTS, KERNEL_CPUS, KERNEL_CPUS_LIMIT, KERNEL_GPUS, KERNEL_GPUS_LIMIT,
    KERNEL_MEMORY, KERNEL_LAUNCH_TIMEOUT, KERNEL_WORKING_DIR]
  images: [ok/*]
  namespaces: [listed]
  serviceAccounts: [listed]
  secrets: [listed]
  persistentVolumeClaims: [listed]
  volumes: [persistentVolumeClaim, secret]
  userIDs: [0, 1000-70000]
  maxima: {cpu: 2, memory: 1Gi, "*/gpu": 1}
`

// policyOf reads a policy, which must be valid.
func policyOf(t testing.TB, text string) *wish.Policy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := wish.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Every value that a kernelspec must not set is refused, and the error names its key.
func TestExtension_Refusals(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, strictPolicy)
	kernel := func(s string) string { return `"pod": {"spec": {"containers": [{"name": "kernel", ` + s + `}]}}` }
	spec := func(s string) string { return `"pod": {"spec": {` + s + `}}` }
	long := strings.Repeat("x", 200)
	extra := func(s string) string {
		all := `"containers": [{`
		for key, value := range map[string]string{"name": "x", "image": "ok/x"} {
			if !strings.HasPrefix(s, `"`+key+`"`) {
				all += fmt.Sprintf("%q: %q, ", key, value)
			}
		}
		return strings.TrimSuffix(all+s, ", ") + "}]"
	}
	tests := []struct{ ekg, want string }{
		{`"image": "bad/image"`, `image: "bad/image" is not allowed; allowed: ok/*`},
		{`"image": "ok/ image"`, `image: "ok/ image" is not a valid image name`},
		{`"image": "no/` + long + `"`, `image: "no/` + long[:97] + `..." is not allowed; allowed: ok/*`},
		{`"image": 5`, `image: is a number, not a string`},
		{`"image": null`, `image: is null; leave the key out instead`},
		{`"cull": {"idleTimeout": 7200}`, `cull.idleTimeout: 7200 is not a duration like "2h", "30m" or "0"`},
		{`"Image": "ok/x"`, `Image: cannot be set; valid keys: affinity, annotations, containers, cull,`},
		{`"imagePullPolicy": "Sometimes"`, `imagePullPolicy: is "Sometimes"; it must be Always, IfNotPresent or Never`},
		{`"imagePullSecrets": [{"name": "other"}]`,
			`imagePullSecrets[0].name: "other" is not allowed; allowed: listed, ekg-*`},
		{`"imagePullSecrets": [{"name": "ekg-x"}]`,
			`imagePullSecrets[0].name: "ekg-x" is one of ekg's own secrets, which kernels cannot use`},
		{`"imageKernelspec": "../x"`, `imageKernelspec: "../x" is not a valid kernelspec name`},
		{`"entrypoint": "drop"`, `entrypoint: is "drop"; the only value is "keep"`},
		{`"workingDir": "x"`, `workingDir: "x" is not an absolute path`},
		{`"shmSize": "-1"`, `shmSize: is negative`},
		{`"shmSize": "1 GB"`, `shmSize: "1 GB" is not a valid value`},
		{`"resources": {"limits": {"cpu": "3"}}`, `resources.limits.cpu: 3 is more than the allowed 2`},
		{`"resources": {"limits": {"cpu": "1e2147483647"}}`, `resources.limits.cpu: has too large an exponent`},
		{`"resources": {"limits": {"cpu": "-1"}}`, `resources.limits.cpu: -1 is negative`},
		{`"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}`,
			`resources.requests.cpu: 2 is more than the limit of 1`},
		{`"resources": {"limits": {"amd.com/gpu": "2"}}`, `resources.limits.amd.com/gpu: 2 is more than the allowed 1`},
		{`"resources": {"limits": {"x.com/y": "500m"}}`,
			`resources.limits.x.com/y: 500m is not a whole number, as this resource requires`},
		{`"resources": {"limits": {"x.com/y": 2}, "requests": {"x.com/y": 1}}`,
			`resources.requests.x.com/y: 1 is not equal to the limit of 2`},
		{`"resources": {"limits": {"a b": "1"}}`, `resources.limits.a b: is not a valid resource name`},
		{`"resources": {"claims": [{"name": "x"}]}`, `resources.claims[0].name: no resource claim is named "x"`},
		{`"resources": {"limit": {}}`, `resources.limit: cannot be set; valid keys: claims, limits, requests`},
		{`"resourceClaims": [{"name": "x"}]`,
			`resourceClaims[0]: must have exactly one of resourceClaimName and resourceClaimTemplateName`},
		{`"resourceClaims": [{"name": "X", "resourceClaimName": "x"}]`,
			`resourceClaims[0].name: "X" is not a valid Kubernetes name`},
		{`"nodeSelector": {"bad/x": "y"}`, `nodeSelector.bad/x: "bad/x" is not allowed; allowed: ok/*`},
		{`"nodeSelector": {"ok/x": "a b"}`, `nodeSelector.ok/x: "a b" is not a valid label value`},
		{`"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": ` +
			`{"matchExpressions": [{"key": "bad", "operator": "Exists"}]}}]}}`,
			`affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key: ` +
				`"bad" is not allowed`},
		{`"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": ` +
			`[{"matchFields": [{"key": "metadata.name", "operator": "In"}]}]}}}`,
			`affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key: ` +
				`"metadata.name" is not allowed`},
		{`"priorityClassName": "other"`, `priorityClassName: "other" is not allowed; allowed: listed, system-*`},
		{`"priorityClassName": "system-node-critical"`,
			`priorityClassName: "system-node-critical" is reserved for the cluster's own pods`},
		{`"runtimeClassName": "other"`, `runtimeClassName: "other" is not allowed; allowed: listed`},
		{`"schedulerName": "other"`, `schedulerName: "other" is not allowed; allowed: listed`},
		{`"serviceAccountName": "other"`, `serviceAccountName: "other" is not allowed; allowed: listed`},
		{`"serviceAccountName": "A B"`, `serviceAccountName: "A B" is not a valid Kubernetes name`},
		{`"volumes": [{"name": "v", "hostPath": {"path": "/"}}]`,
			`volumes[0].hostPath: volumes of this kind are not allowed; allowed: configMap,`},
		{`"volumes": [{"name": "v", "csi": {"driver": "x"}}]`, `volumes[0].csi: volumes of this kind are not allowed`},
		{`"volumes": [{"name": "v"}]`,
			`volumes[0]: "v" has 0 kinds of source; it must have exactly one (an empty volume is written as emptyDir)`},
		{`"volumes": [{"name": "v", "emptyDir": {}, "configMap": {"name": "listed"}}]`,
			`volumes[0]: "v" has 2 kinds of source`},
		{`"volumes": [{"name": "v", "secret": {"secretName": "other"}}]`,
			`volumes[0].secret.secretName: "other" is not allowed; allowed: listed`},
		{`"volumes": [{"name": "v", "secret": {"secretName": "ekg-0-1"}}]`,
			`volumes[0].secret.secretName: "ekg-0-1" is one of ekg's own secrets`},
		{`"volumes": [{"name": "v", "configMap": {"name": "other"}}]`, `volumes[0].configMap.name: "other" is not allowed`},
		{`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "other"}}]`,
			`volumes[0].persistentVolumeClaim.claimName: "other" is not allowed`},
		{`"volumes": [{"name": "v", "image": {"reference": "bad/x"}}]`,
			`volumes[0].image.reference: "bad/x" is not allowed; allowed: ok/*`},
		{`"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]`,
			`volumes[0].projected.sources[0].serviceAccountToken: cannot be projected; metadata.ekg.serviceAccountToken mounts`},
		{`"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "other"}}]}}]`,
			`volumes[0].projected.sources[0].secret.name: "other" is not allowed`},
		{`"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "other"}}]}}]`,
			`volumes[0].projected.sources[0].configMap.name: "other" is not allowed`},
		{`"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "listed"}, "configMap": {"name": ` +
			`"listed"}}]}}]`,
			`volumes[0].projected.sources[0]: has more than one source`},
		{`"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}}]`,
			`volumes[0].projected.sources[0]: only secret, configMap and downwardAPI can be projected`},
		{`"volumes": [{"name": "secret", "emptyDir": {}}]`,
			`volumes[0].name: "secret" is one of ekg's own volumes; choose another name`},
		{`"volumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]`, `volumes[1].name: "a" is given twice`},
		{`"volumes": [{"name": "a", "emptyDir": {}}], ` + spec(`"volumes": [{"name": "a", "emptyDir": {}}]`),
			`pod.spec.volumes[0].name: "a" is given twice`},
		{`"volumes": [{"name": "A", "emptyDir": {}}]`, `volumes[0].name: "A" is not a valid Kubernetes name`},
		{`"volumeMounts": [{"name": "secret", "mountPath": "/x"}]`,
			`volumeMounts[0].name: "secret" is one of ekg's own volumes`},
		{`"volumeMounts": [{"name": "ekg", "mountPath": "/x"}]`, `volumeMounts[0].name: "ekg" is one of ekg's own volumes`},
		{`"volumeMounts": [{"name": "v", "mountPath": "/x"}]`, `volumeMounts[0].name: no volume is named "v"`},
		{mountAt("/ekg"), `volumeMounts[0].mountPath: "/ekg" is reserved for ekg`},
		{mountAt("/ekg//bin/"), `volumeMounts[0].mountPath: "/ekg//bin/" is reserved for ekg`},
		{mountAt("/x/../ekg"), `volumeMounts[0].mountPath: "/x/../ekg" is not an absolute path without '..' and ':'`},
		{mountAt("x"), `volumeMounts[0].mountPath: "x" is not an absolute path`},
		{mountAt("//"), `volumeMounts[0].mountPath: "//" would hide files that the kernel needs`},
		{mountAt("/dev"), `volumeMounts[0].mountPath: "/dev" would hide files that the kernel needs`},
		{mountAt("/dev/shm"), `volumeMounts[0].mountPath: /dev/shm cannot be mounted; metadata.ekg.shmSize sets its size`},
		{mountAt("/dev/termination-log"), `volumeMounts[0].mountPath: "/dev/termination-log" is reserved for ekg`},
		{`"volumes": [{"name": "v", "emptyDir": {}}], "volumeMounts": [{"name": "v", "mountPath": "/x", ` +
			`"mountPropagation": "Bidirectional"}]`,
			`volumeMounts[0].mountPropagation: Bidirectional is never allowed: it changes the node's mounts`},
		{`"env": [{"name": "A=B"}]`, `env[0].name: "A=B" is not a valid variable name`},
		{`"env": [{"name": "EKG_TOKEN"}]`, `env[0].name: "EKG_TOKEN" is reserved for ekg`},
		{`"env": [{"name": "A"}, {"name": "A"}]`, `env[1].name: "A" is given twice`},
		{`"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]`,
			`env[0].valueFrom: cannot be combined with a value`},
		{`"env": [{"name": "A", "valueFrom": {}}]`, `env[0].valueFrom: has none of secretKeyRef,`},
		{`"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}}]`,
			`env[0].valueFrom.secretKeyRef.name: "other" is not allowed`},
		{`"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "other", "key": "k"}}}]`,
			`env[0].valueFrom.configMapKeyRef.name: "other" is not allowed`},
		{`"securityContext": {"privileged": true}`, `securityContext.privileged: a kernel cannot be privileged`},
		{`"securityContext": {"allowPrivilegeEscalation": true}`,
			`securityContext.allowPrivilegeEscalation: a kernel cannot gain privileges`},
		{`"securityContext": {"procMount": "Unmasked"}`, `securityContext.procMount: the only value is Default`},
		{`"securityContext": {"windowsOptions": {}}`, `securityContext.windowsOptions: cannot be set: kernels run on Linux`},
		{`"securityContext": {"seccompProfile": {"type": "Unconfined"}}`,
			`securityContext.seccompProfile.type: Unconfined is never allowed`},
		{`"securityContext": {"appArmorProfile": {"type": "Unconfined"}}`,
			`securityContext.appArmorProfile.type: Unconfined is never allowed`},
		{`"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}`,
			`securityContext.capabilities.add[0]: "SYS_ADMIN" is not allowed; allowed: SYS_NICE`},
		{`"securityContext": {"runAsUser": 0}`,
			`securityContext.runAsUser: 0 is root; the policy does not let kernels run as root`},
		{`"securityContext": {"runAsUser": 65532}`, `securityContext.runAsUser: 65532 is the supervisor's user`},
		{`"securityContext": {"runAsUser": 7}`, `securityContext.runAsUser: 7 is not allowed; allowed: 0, 1000-70000`},
		{`"securityContext": {"runAsUser": 1e99}`, `securityContext.runAsUser: 1e99 is not a valid number here`},
		{`"securityContext": {"runAsGroup": 7}`, `securityContext.runAsGroup: 7 is not allowed; allowed: 100`},
		{`"securityContext": {"runAsNonRoot": false}`,
			`securityContext.runAsNonRoot: is false; the policy does not let kernels run as root`},
		{extra(`"restartPolicy": "Always"`), `containers[0].restartPolicy: cannot be set: these containers run for`},
		{extra(`"image": "bad/x"`), `containers[0].image: "bad/x" is not allowed; allowed: ok/*`},
		{extra(`"image": ""`), `containers[0].image: is missing`},
		{extra(`"ports": []`), `containers[0].ports: cannot be set; valid keys: args, command, env,`},
		{extra(`"readinessProbe": {}`), `containers[0].readinessProbe: cannot be set`},
		{extra(`"name": "kernel"`), `containers[0].name: "kernel" is one of ekg's own containers; choose another name`},
		{extra(`"name": "supervisor"`), `containers[0].name: "supervisor" is one of ekg's own containers`},
		{extra(`"name": "A b"`), `containers[0].name: "A b" is not a valid Kubernetes name`},
		{extra(`"securityContext": {"privileged": true}`), `containers[0].securityContext.privileged: a kernel cannot be`},
		{extra(`"securityContext": {"runAsUser": 0}`), `containers[0].securityContext.runAsUser: 0 is root; the policy does`},
		{extra(`"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}`),
			`containers[0].securityContext.capabilities.add[0]: "NET_ADMIN" is not allowed; allowed: SYS_NICE`},
		{extra(`"volumeMounts": [{"name": "secret", "mountPath": "/x"}]`),
			`containers[0].volumeMounts[0].name: "secret" is one of ekg's own volumes`},
		{extra(`"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}}]`),
			`containers[0].env[0].valueFrom.secretKeyRef.name: "other" is not allowed`},
		{extra(`"resources": {"limits": {"cpu": 3}}`), `containers[0].resources.limits.cpu: 3 is more than the allowed 2`},
		{extra(`"resources": {"limits": {"nvidia.com/gpu": 1}}`),
			`containers[0].resources.limits.nvidia.com/gpu: only the kernel's container can have GPUs`},
		{extra(`"resources": {"claims": [{"name": "x"}]}`),
			`containers[0].resources.claims: only the kernel's container can have resource claims`},
		{extra(`"livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}`),
			`containers[0].livenessProbe.httpGet.host: cannot be set: the node would connect to it`},
		{extra(`"startupProbe": {"tcpSocket": {"host": "db", "port": 80}}`),
			`containers[0].startupProbe.tcpSocket.host: cannot be set`},
		{`"resources": {"limits": {"cpu": "1500m"}}, ` + extra(`"resources": {"limits": {"cpu": "501m"}}`),
			`resources.limits.cpu: 1500m, and 501m of the containers beside it, are more than the allowed 2`},
		{kernel(`"resources": {"requests": {"cpu": "1500m"}}`) + `, ` + extra(`"resources": {"requests": {"cpu": "501m"}}`),
			`resources.requests.cpu: 1500m, and 501m of the containers beside it, are more than the allowed 2`},
		{`"containers": [{"name": "a", "image": "ok/x", "resources": {"limits": {"cpu": "1500m"}}},
			{"name": "b", "image": "ok/x", "resources": {"limits": {"cpu": "501m"}}}]`,
			`resources.limits.cpu: 0, and 2001m of the containers beside it, are more than the allowed 2`},
		{`"initContainers": [{"name": "a", "image": "ok/x", "resources": {"limits": {"cpu": "1500m"}}}], ` +
			extra(`"resources": {"limits": {"cpu": "501m"}}`),
			`initContainers[0].resources.limits.cpu: 1500m, and 501m of the containers beside it, are more than`},
		{`"initContainers": [{"name": "a", "image": "ok/x"}, {"name": "a", "image": "ok/x"}]`,
			`initContainers[1].name: "a" is given twice`},
		{`"initContainers": [{"name": "x", "image": "ok/x"}], ` + extra(``), `containers[0].name: "x" is given twice`},
		{`"initContainers": [{"name": "a", "image": "ok/x", "restartPolicy": "Never"}]`,
			`initContainers[0].restartPolicy: is "Never"; the only value is Always`},
		{`"initContainers": [{"name": "a", "image": "ok/x", "startupProbe": {}}]`,
			`initContainers[0].startupProbe: cannot be set for a container that ends before the kernel starts`},
		{`"initContainers": [` + strings.Repeat(`{},`, 16) + `{}]`, `initContainers: has 17 containers; at most 16`},
		{`"serviceAccountToken": true`, `serviceAccountToken: needs serviceAccountName, which says whose token it is`},
		{`"serviceAccountToken": true, "serviceAccountName": "listed"`,
			`serviceAccountToken: "listed" is not allowed; allowed: spark`},
		{`"serviceAccountName": "listed", "volumes": [{"name": "v", "emptyDir": {}}], "serviceAccountToken": true,
			"volumeMounts": [{"name": "v", "mountPath": "/var/run/secrets"}], ` + spec(`"serviceAccountName": "spark"`),
			`serviceAccountToken: cannot be mounted: a volume is mounted at "/var/run/secrets" (mount 1)`},
		{`"serviceAccountToken": "yes"`, `serviceAccountToken: is a string, not a boolean`},
		{`"ports": [{"containerPort": 80}]`, `ports[0].containerPort: 80 is not allowed; allowed: 7000-7999, 8889`},
		{`"ports": [{"containerPort": 8889}]`, `ports[0].containerPort: 8889 is the supervisor's port`},
		{`"ports": [{"containerPort": 7000, "hostPort": 80}]`, `ports[0].hostPort: cannot be set: a kernel has no ports`},
		{`"ports": [{"containerPort": 7000, "hostIP": "1.1.1.1"}]`, `ports[0].hostIP: cannot be set`},
		{`"ports": [{"containerPort": 7000, "protocol": "tcp"}]`, `ports[0].protocol: is "tcp"; it must be TCP or UDP`},
		{`"ports": [{"containerPort": 7000, "name": "A"}]`, `ports[0].name: "A" is not a valid name of a port`},
		{`"ports": [{"containerPort": 7000, "name": "supervisor"}]`, `ports[0].name: "supervisor" is taken`},
		{`"ports": [{"containerPort": 7000}, {"containerPort": 7000}]`, `ports[1].containerPort: 7000 is given twice`},
		{`"lifecycle": {"preStop": {"tcpSocket": {"port": 1}}}`,
			`lifecycle.preStop.tcpSocket: cannot be set: Kubernetes does nothing with it`},
		{`"lifecycle": {"preStop": {}}`, `lifecycle.preStop: must have exactly one of exec, httpGet and sleep`},
		{`"lifecycle": {"postStart": {"exec": {"command": []}}}`, `lifecycle.postStart.exec.command: is missing`},
		{`"lifecycle": {"postStart": {"httpGet": {"host": "metadata", "port": 80}}}`,
			`lifecycle.postStart.httpGet.host: cannot be set`},
		{`"lifecycle": {"stopSignal": "SIGKILL"}`, `lifecycle.stopSignal: cannot be set: ekg ends the kernel`},
		{`"lifecycle": {"poststart": {}}`, `lifecycle.poststart: cannot be set; valid keys: postStart, preStop, stopSignal`},
		{`"labels": {"app.kubernetes.io/managed-by": "me"}`, `labels.app.kubernetes.io/managed-by: is reserved for ekg`},
		{`"labels": {"elastic-kernel-gateway.github.io/kernel-id": "me"}`,
			`labels.elastic-kernel-gateway.github.io/kernel-id: is reserved for ekg`},
		{`"labels": {"a": "b c"}`, `labels.a: "b c" is not a valid label value`},
		{`"annotations": {"elastic-kernel-gateway.github.io/owner": "me"}`,
			`annotations.elastic-kernel-gateway.github.io/owner: is reserved for ekg`},
		{`"annotations": {"container.apparmor.security.beta.kubernetes.io/kernel": "unconfined"}`,
			`annotations.container.apparmor.security.beta.kubernetes.io/kernel: is reserved`},
		{`"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}`,
			`annotations.cluster-autoscaler.kubernetes.io/safe-to-evict: is reserved`},
		{`"annotations": {"a b": "x"}`, `annotations.a b: is not a valid Kubernetes key`},
		{`"terminationGracePeriodSeconds": 1`, `terminationGracePeriodSeconds: is 1; it must be from 10 to 86400`},
		{`"pod": {"metadata": {"name": "x"}}`, `pod.metadata.name: cannot be set; valid keys: annotations, labels`},
		{`"pod": {"metadata": {"namespace": "kube-system"}}`, `pod.metadata.namespace: cannot be set`},
		{`"pod": {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}`,
			`pod.metadata.labels.app.kubernetes.io/name: is reserved for ekg`},
		{spec(`"restartPolicy": "Always"`), `pod.spec.restartPolicy: cannot be set; valid keys: activeDeadlineSeconds,`},
		{spec(`"automountServiceAccountToken": true`), `pod.spec.automountServiceAccountToken: cannot be set`},
		{spec(`"hostNetwork": true`), `pod.spec.hostNetwork: cannot be set`},
		{spec(`"hostPID": true`), `pod.spec.hostPID: cannot be set`},
		{spec(`"hostIPC": true`), `pod.spec.hostIPC: cannot be set`},
		{spec(`"shareProcessNamespace": true`), `pod.spec.shareProcessNamespace: cannot be set`},
		{spec(`"initContainers": []`), `pod.spec.initContainers: cannot be set`},
		{spec(`"schedulingGates": []`), `pod.spec.schedulingGates: cannot be set`},
		{spec(`"nodeName": "n"`), `pod.spec.nodeName: cannot be set`},
		{spec(`"activeDeadlineSeconds": 0`), `pod.spec.activeDeadlineSeconds: is 0; it must be at least 1`},
		{spec(`"$patch": "delete"`), `pod.spec.$patch: cannot be set`},
		{spec(`"securityContext": {"sysctls": []}`), `pod.spec.securityContext.sysctls: cannot be set`},
		{spec(`"securityContext": {"fsGroup": 0}`), `pod.spec.securityContext.fsGroup: 0 is not allowed; allowed: 100`},
		{spec(`"securityContext": {"supplementalGroups": [100, 5]}`),
			`pod.spec.securityContext.supplementalGroups[1]: 5 is not allowed; allowed: 100`},
		{spec(`"containers": [{"name": "supervisor", "image": "ok/x"}]`),
			`pod.spec.containers: can hold only the container "kernel"`},
		{spec(`"containers": [{"name": "kernel"}, {"name": "more"}]`),
			`pod.spec.containers: can hold only the container "kernel"`},
		{kernel(`"command": ["sh"]`), `pod.spec.containers[0].command: cannot be set`},
		{kernel(`"ports": [{"hostPort": 80}]`), `pod.spec.containers[0].ports: cannot be set`},
		{kernel(`"lifecycle": {}`), `pod.spec.containers[0].lifecycle: cannot be set`},
		{kernel(`"image": "bad/x"`), `pod.spec.containers[0].image: "bad/x" is not allowed; allowed: ok/*`},
		{kernel(`"envFrom": [{"secretRef": {"name": "other"}}]`),
			`pod.spec.containers[0].envFrom[0].secretRef.name: "other" is not allowed`},
		{kernel(`"envFrom": [{"configMapRef": {"name": "other"}}]`),
			`pod.spec.containers[0].envFrom[0].configMapRef.name: "other" is not allowed`},
		{kernel(`"envFrom": [{"prefix": "x"}]`),
			`pod.spec.containers[0].envFrom[0]: has neither a secretRef nor a configMapRef`},
		{kernel(`"volumeDevices": [{"name": "secret", "devicePath": "/dev/x"}]`),
			`pod.spec.containers[0].volumeDevices[0].name: "secret" is one of ekg's own volumes`},
		{kernel(`"volumeMounts": [{"name": "home", "mountPath": "/x"}]`),
			`pod.spec.containers[0].volumeMounts[0].name: "home" is one of ekg's own volumes`},
		{kernel(`"securityContext": {"privileged": true}`),
			`pod.spec.containers[0].securityContext.privileged: a kernel cannot be privileged`},
	}
	for _, tt := range tests {
		_, err := Build(o, launcher.Request{ID: testID, Spec: specOf("{" + tt.ekg + "}")}, testRecord("test"))
		var r *launcher.RefusedError
		if want := "kernelspec test: metadata.ekg." + tt.want; !errors.As(err, &r) || !strings.HasPrefix(r.Reason, want) {
			t.Errorf("%s:\ngot  %v\nwant %s", tt.ekg, err, want)
		}
	}
}

func mountAt(path string) string {
	return `"volumes": [{"name": "v", "emptyDir": {}}], "volumeMounts": [{"name": "v", "mountPath": "` + path + `"}]`
}

// A key that the policy does not allow is refused, as a short key and under pod.
func TestExtension_Allow(t *testing.T) {
	everything, err := os.ReadFile("testdata/fullest/kernel.json")
	if err != nil {
		t.Fatal(err)
	}
	everything = bytes.Replace(everything, []byte(`"serviceAccountName": "kernel",`), // a client of the other tests names
		[]byte(`"serviceAccountName": "kernel", "serviceAccountToken": true, "objects": [
		{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}],`), 1) // another account
	for _, key := range kernelspecs.PodKeys {
		if key == "imageKernelspec" {
			continue // cannot be together with argv's absence in the fullest kernelspec
		}
		o := testOptions()
		o.Policy, err = wish.ReadPolicy("testdata/fullest/policy.yaml")
		if err != nil {
			t.Fatal(err)
		}
		o.Policy.Kernelspecs.ServiceAccountTokens = wish.Patterns{"kernel"}
		o.Policy.Kernelspecs.Objects = []string{"ConfigMap"}
		o.Policy.Kernelspecs.Allow = slices.DeleteFunc(o.Policy.Kernelspecs.Allow, func(k string) bool { return k == key })
		dir := filepath.Join(t.TempDir(), "spec")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), everything, 0o644); err != nil {
			t.Fatal(err)
		}
		problems := kernelspecs.Check(dir, "", o.Check(nil))
		if len(problems) == 0 {
			t.Errorf("%s is accepted", key)
		}
		for _, p := range problems {
			if !strings.Contains(p.Key, key) || p.Line == 0 ||
				!strings.HasPrefix(p.Message, "the policy does not let kernelspecs set this") {
				t.Errorf("%s: got %v", key, p)
			}
		}
	}
}

// Problems have the line of their key, also after other metadata.
func TestCheck_Lines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spec")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := `{"argv": ["{resource_dir}/x", "{connection_file}"], "display_name": "x", "language": "x",
 "metadata": {
  "other": [1,
   2],
  "ekg": {"image": "x",
   "resources": {
     "limits": {"cpu": "many",
       "cpu": 1}, "Requests": {}},
   "volumes": [
     {"name": "v", "hostPath": {"path": "/"}},
     {"name": "w"}]
  }}}`
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	check := func() (got []string) {
		for _, p := range kernelspecs.Check(dir, "", testOptions().Check(nil)) {
			got = append(got, strings.TrimPrefix(p.String(), dir+"/kernel.json"))
		}
		return got
	}
	want := []string{
		`:7: metadata.ekg.resources.limits.cpu: "many" is not a valid value`,
		`:7: metadata.ekg.resources.limits.cpu: is given twice`,
		`:8: metadata.ekg.resources.Requests: cannot be set; valid keys: claims, limits, requests`,
	}
	if got := check(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	text = strings.Replace(strings.Replace(text, `"cpu": "many",`, "", 1), `, "Requests": {}`, "", 1)
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	want = []string{
		`:10: metadata.ekg.volumes[0].hostPath: volumes of this kind are not allowed; allowed: configMap, downwardAPI, ` +
			`emptyDir, ephemeral, image, nfs, persistentVolumeClaim, projected, secret`,
		`:11: metadata.ekg.volumes[1]: "w" has 0 kinds of source; it must have exactly one (an empty volume is written as ` +
			`emptyDir)`,
		`: argv[0]: {resource_dir} is a directory on the gateway's machine, which a pod does not have; write a path of ` +
			`the image`,
	}
	if got := check(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A missing image is a problem only in a kernelspec for pods.
func TestCheck_MissingForPods(t *testing.T) {
	o, withImage, free := testOptions(), testOptions(), testOptions()
	withImage.KernelImage = "x"
	free.Policy = policyOf(t, "clients: {allow: [KERNEL_IMAGE], images: ['*']}")
	for _, tt := range []struct {
		name, ekg string
		o         Options
		want      string
	}{
		{"a process", `{"transport": "ipc"}`, o, ""},
		{"an image for all", `{"transport": "ipc"}`, withImage, "argv[0]: {prefix} is a directory"},
		{"no image", `{"nodeSelector": {"a": "b"}}`, o, "metadata.ekg.image: is missing"},
		{"the client's image", `{"nodeSelector": {"a": "b"}}`, free, "argv[0]: {prefix} is a directory"},
		{"the overlay's image", `{"pod": {"spec": {"containers": [{"name": "kernel", "image": "x"}]}}}`, o,
			"argv[0]: {prefix} is a directory"},
	} {
		spec := specOf(tt.ekg)
		spec.Argv[0] = "{prefix}/bin/x"
		got := ""
		if problems := tt.o.Check(nil)(spec); len(problems) > 0 {
			got = problems[0].Key + ": " + problems[0].Message
		}
		if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
