package podstatus

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// The statuses below are written after the sources of Kubernetes 1.34 (scheduler, kubelet, node controllers),
// containerd's and runc's errors, and the autoscalers' events.

func TestExplain(t *testing.T) {
	const noGPU = "0/5 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, " +
		"4 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/5 nodes are available: 1 Preemption is " +
		"not helpful for scheduling, " +
		"4 No preemption victims found for incoming pod."
	const noGPUText = "no node can take it (no GPU is free): of 5 nodes, 1 node(s) had untolerated taint " +
		"{node-role.kubernetes.io/control-plane: }, 4 Insufficient nvidia.com/gpu"
	const freeOne = "; wait, or shut down a kernel that has one"
	const pull = `failed to pull and unpack image "reg.example/lab/image:2": failed to resolve reference ` +
		`"reg.example/lab/image:2": `
	const shim = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create " +
		"failed: " +
		"unable to start container process: "
	secret := event("kubelet", "FailedMount", `MountVolume.SetUp failed for volume "secret" : secret "ekg-k-1" not found`,
		time.Minute)
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		events []corev1.Event
		class  Class
		text   string
	}{
		// Not scheduled.
		{"no component has looked at it", podOf(), nil, ClassWaiting, "it waits for the scheduler"},
		{"no template of a claim", podOf(), []corev1.Event{event("resource_claim", "FailedResourceClaimCreation",
			`PodResourceClaim device: resource claim template "one": resourceclaimtemplate.resource.k8s.io "one" not found`,
			time.Minute)}, ClassWaiting,
			`its resource claim cannot be created: PodResourceClaim device: resource claim template "one": ` +
				`resourceclaimtemplate.resource.k8s.io "one" not found`},
		{"gated", podOf(condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonSchedulingGated,
			"Scheduling is blocked due to non-empty scheduling gates"),
			func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "ekg/admission"}} }), nil,
			ClassWaiting, "it waits for its turn (ekg/admission)"},
		{"no GPU", podOf(unschedulable(noGPU)), nil, ClassWaiting, noGPUText + freeOne},
		{"no MIG slice", podOf(unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.5gb. no new " +
			"claims to deallocate")), nil, ClassWaiting,
			"no node can take it (no GPU is free): of 1 node, 1 Insufficient nvidia.com/mig-1g.5gb. " +
				"no new claims to deallocate" + freeOne},
		{"no memory", podOf(unschedulable("0/3 nodes are available: 3 Insufficient memory. preemption: not eligible due " +
			"to preemptionPolicy=Never.")), nil,
			ClassWaiting, "no node can take it (not enough memory): of 3 nodes, 3 Insufficient memory; " +
				"wait, or ask for less"},
		{"preemption", podOf(func(p *corev1.Pod) {
			unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: not yet finished.")(p)
			p.Status.NominatedNodeName = "gpu-1"
		}), nil, ClassWaiting, "node gpu-1 makes room for it"},
		{"no nodes", podOf(unschedulable("no nodes available to schedule pods")), nil, ClassWaiting,
			"no node can take it: no nodes available to schedule pods"},
		{"no claim of a volume",
			podOf(unschedulable(`0/1 nodes are available: persistentvolumeclaim "data" not found. not found`)), nil,
			ClassWaiting,
			`no node can take it (its volume does not exist): of 1 node, persistentvolumeclaim "data" not found. not found; ` +
				"create the claim, or correct its name in the kernelspec"},
		{"no device", podOf(unschedulable("0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, " +
			"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")), nil, ClassWaiting,
			"no node can take it (no device is free): of 2 nodes, 2 cannot allocate all claims" + freeOne},
		{"silent node", podOf(unschedulable("0/1 nodes are available: 1 node(s) had untolerated taint " +
			"{node.kubernetes.io/unreachable: }. no new claims to deallocate, preemption: 0/1 nodes are available: 1 " +
			"Preemption is not helpful for scheduling.")), nil,
			ClassWaiting, "no node can take it (a node does not answer): of 1 node, 1 node(s) had untolerated taint " +
				"{node.kubernetes.io/unreachable: }; it starts when the node is back"},
		{"silent node, or another taint",
			podOf(unschedulable("0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, " +
				"preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")), nil,
			ClassWaiting, "no node can take it (a node does not answer, or is kept for others): of 1 node, 1 node(s) had " +
				"untolerated taint(s)"},
		{"cordoned node", podOf(unschedulable("0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 " +
			"nodes are available: 1 Preemption is not helpful for scheduling.")), nil,
			ClassWaiting, "no node can take it (a node is cordoned): of 1 node, 1 node(s) were unschedulable; " +
				"it starts when the operator ends the maintenance of the node"},
		{"selector", podOf(unschedulable("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.")),
			nil, ClassWaiting,
			"no node can take it (no node has the labels that it asks for): of 2 nodes, 2 node(s) didn't match Pod's node " +
				"affinity/selector; use another kernelspec, or ask the operator for such a node"},
		{"a node comes", podOf(unschedulable(noGPU)), []corev1.Event{
			event("default-scheduler", "FailedScheduling", noGPU, 3*time.Minute),
			event("cluster-autoscaler", "TriggeredScaleUp", "pod triggered scale-up: [{gpu-pool 0->1 (max: 3)}]",
				130*time.Second)}, ClassWaiting,
			noGPUText + "; a node is being added for 2 minutes"},
		{"no node comes", podOf(unschedulable(noGPU)), []corev1.Event{
			event("cluster-autoscaler", "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached",
				time.Minute)}, ClassWaiting,
			noGPUText + freeOne + "; the autoscaler adds no node (its node groups have their largest size; the operator " +
				"can raise it): 1 max node group size reached"},
		{"Karpenter orders one", podOf(unschedulable(noGPU)), []corev1.Event{
			event("karpenter", "Nominated", "Pod should schedule on: nodeclaim/gpu-x7z", time.Minute)}, ClassWaiting,
			noGPUText + "; a node was requested (nodeclaim/gpu-x7z)"},
		{"Karpenter has none", podOf(unschedulable(noGPU)), []corev1.Event{
			event("karpenter", "FailedScheduling", "Failed to schedule pod, no instance type has enough resources",
				time.Minute)}, ClassWaiting,
			noGPUText + freeOne + "; Karpenter adds no node (no allowed instance type is large enough, or none is on " +
				"offer): Failed to schedule pod, no instance type has enough resources"},

		// Scheduled, and not running yet.
		{"on its node, and nothing yet", podOf(func(p *corev1.Pod) {
			onNode(p)
			p.Status.ContainerStatuses, p.Status.StartTime = nil, &p.CreationTimestamp
		}), nil, ClassWaiting,
			"its containers are being created for 5 minutes"},
		{"no kubelet", podOf(func(p *corev1.Pod) { onNode(p); p.Status.ContainerStatuses = nil }), nil, ClassWaiting,
			"its node n1 has not accepted it for 5 minutes; the kubelet there may be down"},
		{"pulling", podOf(running(waits("ContainerCreating", ""), corev1.ContainerState{})), []corev1.Event{
			event("kubelet", "Pulled", `Container image "ekg:1" already present on machine`, 95*time.Second),
			event("kubelet", "Pulling", `Pulling image "lab/image:2"`, 90*time.Second)}, ClassWaiting,
			`the image "lab/image:2" is being pulled for a minute`},
		{"pulled", podOf(running(waits("ContainerCreating", ""), corev1.ContainerState{})), []corev1.Event{
			event("kubelet", "Pulling", `Pulling image "lab/image:2"`, 90*time.Second),
			event("kubelet", "Pulled", `Successfully pulled image "lab/image:2" in 1m20s`, 10*time.Second)}, ClassWaiting,
			"its containers are being created for 5 minutes"},
		{"secret", podOf(onNode), []corev1.Event{secret}, ClassWaiting, `the secret "ekg-k-1" does not exist yet`},
		{"secret there now", podOf(onNode),
			[]corev1.Event{secret, event("kubelet", "Pulling", `Pulling image "ekg:1"`, 5*time.Second)}, ClassWaiting,
			`the image "ekg:1" is being pulled`},
		{"events of an earlier pod", podOf(onNode),
			[]corev1.Event{func() corev1.Event { e := secret; e.InvolvedObject.UID = "other"; return e }()},
			ClassWaiting, "its containers are being created for 5 minutes"},
		{"mount", podOf(onNode), []corev1.Event{event("kubelet", "FailedMount",
			`MountVolume.SetUp failed for volume "pvc-1" : mount failed: exit status 32`, time.Minute)}, ClassWaiting,
			`its volume "pvc-1" cannot be mounted yet: MountVolume.SetUp failed for volume "pvc-1" : mount failed: exit ` +
				`status 32`},
		{"attach", podOf(onNode), []corev1.Event{event("attachdetach-controller", "FailedAttachVolume",
			`Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other`, time.Minute)}, ClassWaiting,
			`its volume is still attached to another node; end the kernel that uses it there (a lost node keeps it for 6 ` +
				`minutes): Multi-Attach error for volume "pvc-1" Volume is already used by another pod`},
		{"CNI", podOf(onNode), []corev1.Event{event("kubelet", "FailedCreatePodSandBox",
			`Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "3f": plugin `+
				`type="bridge" failed (add): no IP addresses available`,
			time.Minute)}, ClassWaiting,
			`its node has no free IP address yet; if it stays so, ask the operator: plugin type="bridge" failed (add): ` +
				"no IP addresses available"},

		// Images.
		{"bad name", podOf(running(waits("InvalidImageName",
			`Failed to apply default image tag "Lab": couldn't parse image name`), corev1.ContainerState{})), nil,
			ClassNever, `the image name "lab/image:2" is invalid`},
		{"never pulled", podOf(running(waits("ErrImageNeverPull",
			`Container image "lab/image:2" is not present with pull policy of Never`), corev1.ContainerState{})), nil,
			ClassNever, `the image "lab/image:2" is not on the node, and may not be pulled`},
		{"never pulled, while the supervisor's is", podOf(func(p *corev1.Pod) {
			onNode(p)
			p.Status.ContainerStatuses[1].State = waits("ErrImageNeverPull",
				`Container image "lab/image:2" is not present with pull policy of Never`)
		}), []corev1.Event{event("kubelet", "Pulling", `Pulling image "ekg:1"`, time.Minute)},
			ClassNever, `the image "lab/image:2" is not on the node, and may not be pulled`},
		{"no such image", podOf(running(waits("ErrImagePull", pull+"reg.example/lab/image:2: not found"),
			corev1.ContainerState{})), pullsFailed(2, 10*time.Second),
			ClassNever, `the image "lab/image:2" cannot be pulled: reg.example/lab/image:2: not found; check its name and tag`},
		{"no such image, back-off",
			podOf(running(waits("ImagePullBackOff", `Back-off pulling image "lab/image:2": ErrImagePull: `+pull+
				"reg.example/lab/image:2: not found"),
				corev1.ContainerState{})), nil, ClassNever,
			`the image "lab/image:2" cannot be pulled: reg.example/lab/image:2: not found; check its name and tag`},
		{"no such image, older back-off",
			podOf(running(waits("ImagePullBackOff", `Back-off pulling image "lab/image:2"`), corev1.ContainerState{})),
			[]corev1.Event{event("kubelet", "Failed", `Failed to pull image "lab/image:2": rpc error: code = NotFound desc = `+
				pull+"reg.example/lab/image:2: not found", 70*time.Second),
				event("kubelet", "Failed", "Error: ErrImagePull", 19*time.Second)},
			ClassNever, `the image "lab/image:2" cannot be pulled: reg.example/lab/image:2: not found; check its name and tag`},
		{"denied", podOf(running(waits("ErrImagePull", pull+
			"pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth "+
			"credentials"),
			corev1.ContainerState{})), append(pullsFailed(2, time.Second), event("kubelet", "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed.", time.Minute)),
			ClassNever,
			`the image "lab/image:2" cannot be pulled: pull access denied, repository does not exist or may require ` +
				`authorization: authorization failed: ` +
				"no basic auth credentials; check its name and the pull secret; " +
				"Unable to retrieve some image pull secrets (regcred)"},
		{"no network", podOf(running(waits("ErrImagePull", pull+
			`failed to do request: Head "https://reg.example/v2/lab/image/manifests/2": dial tcp: lookup reg.example: no `+
			`such host`),
			corev1.ContainerState{})), nil, ClassWaiting,
			`the image "lab/image:2" cannot be pulled now, and is tried again: failed to do request: Head ` +
				`"https://reg.example/v2/lab/image/manifests/2": dial tcp: lookup reg.example: no such host`},
		{"older back-off without a cause",
			podOf(running(waits("ImagePullBackOff", `Back-off pulling image "lab/image:2"`), corev1.ContainerState{})), nil,
			ClassWaiting, `the image "lab/image:2" could not be pulled, and is tried again: ` +
				`Back-off pulling image "lab/image:2"`},

		// Containers that cannot be started.
		{"root", podOf(running(waits("CreateContainerConfigError",
			`container has runAsNonRoot and image will run as root (pod: "k-1_ns(u)", container: kernel)`),
			corev1.ContainerState{})), nil,
			ClassNever, "the kernel's container cannot be created: container has runAsNonRoot and image will run as root"},
		{"cache of a secret", podOf(running(waits("CreateContainerConfigError",
			"failed to sync secret cache: timed out waiting for the condition"), corev1.ContainerState{})), nil,
			ClassWaiting, "its container is being created: failed to sync secret cache: timed out waiting for the condition"},
		{"no program", podOf(running(waits("RunContainerError", shim+
			`error during container init: exec: "ipykernel": executable file not found in $PATH: unknown`),
			corev1.ContainerState{})), nil,
			ClassNever, `the kernel's container cannot be started: exec: "ipykernel": executable file not found in $PATH`},
		{"runtime overloaded", podOf(running(waits("CreateContainerError", "context deadline exceeded"),
			corev1.ContainerState{})), nil,
			ClassWaiting, "the kernel's container is being created: context deadline exceeded"},
		{"no program, tried again",
			podOf(running(waits("CrashLoopBackOff", "back-off 10s restarting failed container=kernel pod=k-1_ns(u)"),
				ends("StartError", 128, shim+`exec: "/bin/tini": stat /bin/tini: no such file or directory: unknown`))), nil,
			ClassNever, `the kernel's container cannot be started: exec: "/bin/tini": stat /bin/tini: ` +
				`no such file or directory`},

		// Running, and the kernel's container has ended.
		{"running", podOf(running(runs, corev1.ContainerState{})), nil, ClassNone, ""},
		{"runs again", podOf(running(runs, ends("OOMKilled", 137, ""))), nil, ClassNone, ""},
		{"out of memory", podOf(running(ends("OOMKilled", 137, ""), corev1.ContainerState{})), nil, ClassWaiting,
			"the kernel ran out of memory and was killed (limit 8Gi); it is started again"},
		{"out of memory again",
			podOf(running(waits("CrashLoopBackOff", "back-off 1m20s restarting failed container=kernel pod=k-1_ns(u)"),
				ends("OOMKilled", 137, ""))), nil,
			ClassWaiting, "the kernel ran out of memory and was killed (limit 8Gi); it is started again after a pause of 1m20s"},
		{"killed", podOf(running(ends("Error", 139, ""), corev1.ContainerState{})), nil, ClassWaiting,
			"the kernel's container was killed by signal 11; it is started again"},
		{"its node is silent", podOf(running(runs, corev1.ContainerState{}),
			condition(corev1.PodReady, corev1.ConditionFalse, "", "")),
			[]corev1.Event{event("node-controller", "NodeNotReady", "Node is not ready", time.Minute)}, ClassWaiting,
			"its node n1 does not answer"},
		{"the supervisor crashes", podOf(func(p *corev1.Pod) {
			onNode(p)
			p.Status.ContainerStatuses[0].State = waits("CrashLoopBackOff",
				"back-off 20s restarting failed container=supervisor pod=k-1_ns(u)")
			p.Status.ContainerStatuses[0].LastTerminationState = ends("Error", 1,
				"configuration: protocol is 9, this supervisor speaks 1")
		}), nil, ClassWaiting, "the supervisor's container ended with exit code 1: configuration: protocol is 9, this " +
			"supervisor speaks 1; it is started again after a pause of 20s"},

		// Ended.
		{"stopped", podOf(finished(corev1.PodSucceeded, "", "",
			ends("Completed", 0, lastWords("it was shut down on request", true)), ends("Completed", 0, ""))), nil,
			ClassDied, "it was shut down on request"},
		{"stopped on a node that goes",
			podOf(finished(corev1.PodFailed, "Terminated", "Pod was terminated in response to imminent node shutdown.",
				ends("Completed", 0, lastWords("it was shut down on request", true)), ends("Error", 143, ""))), nil, ClassDied,
			"it was shut down on request"},
		{"crashed at its start", podOf(finished(corev1.PodSucceeded, "", "", ends("Completed", 0,
			lastWords("the kernel ended at its start with exit code 1: ModuleNotFoundError: No module named 'ipykernel'",
				false)), ends("Completed", 0, ""))), nil,
			ClassDied, "the kernel ended at its start with exit code 1: ModuleNotFoundError: No module named 'ipykernel'"},
		{"without last words", podOf(finished(corev1.PodFailed, "", "", ends("Error", 1, "panic: x"),
			ends("OOMKilled", 137, ""))), nil,
			ClassDied, "the kernel ran out of memory and was killed (limit 8Gi)"},
		{"evicted", podOf(finished(corev1.PodFailed, "Evicted",
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 92Mi. ", ends("Error", 143, ""),
			ends("Error", 137, "")),
			condition(corev1.DisruptionTarget, corev1.ConditionTrue, corev1.PodReasonTerminationByKubelet,
				"The node was low on resource: memory.")), nil, ClassDied,
			"it was evicted from its node: The node was low on resource: memory. Threshold quantity: 100Mi, available: 92Mi"},
		{"node shut down", podOf(finished(corev1.PodFailed, "Terminated",
			"Pod was terminated in response to imminent node shutdown.", ends("Error", 143, ""), ends("Error", 143, ""))), nil,
			ClassDied, "its node was shut down"},
		{"node shuts down", podOf(finished(corev1.PodFailed, "Terminated",
			"Pod was terminated in response to imminent node shutdown.", ends("Error", 143, ""), ends("Error", 143, "")),
			condition(corev1.DisruptionTarget, corev1.ConditionTrue, corev1.PodReasonTerminationByKubelet,
				"Pod was terminated in response to imminent node shutdown.")), nil,
			ClassDied, "its node is shutting down: Pod was terminated in response to imminent node shutdown"},
		{"preempted", podOf(running(runs, corev1.ContainerState{}), deleted,
			condition(corev1.DisruptionTarget, corev1.ConditionTrue, corev1.PodReasonPreemptionByScheduler,
				"default-scheduler: preempting to accommodate a higher priority pod")), nil, ClassDied,
			"it was preempted by a kernel or pod of higher priority: default-scheduler: preempting to accommodate a higher " +
				"priority pod"},
		{"its taint", podOf(running(runs, corev1.ContainerState{}), deleted,
			condition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByTaintManager",
				"Taint manager: deleting due to NoExecute taint")), nil, ClassDied,
			"its node was lost or no longer accepts it: Taint manager: deleting due to NoExecute taint"},
		{"drained", podOf(running(runs, corev1.ContainerState{}), deleted,
			condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI",
				"Eviction API: evicting")), nil, ClassDied,
			"it was evicted: its node is drained or removed: Eviction API: evicting"},
		{"its node object deleted",
			podOf(running(runs, corev1.ContainerState{}), deleted,
				condition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByPodGC",
					"PodGC: node no longer exists")), nil, ClassDied, "its node is gone: PodGC: node no longer exists"},
		{"taken by something new",
			podOf(running(runs, corev1.ContainerState{}),
				condition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByComet", "")), nil,
			ClassDied, "it was taken away (DeletionByComet)"},
		{"node lost", podOf(running(runs, corev1.ContainerState{}), deleted,
			func(p *corev1.Pod) { p.Status.Reason = "NodeLost" }), nil, ClassDied, "its node n1 was lost"},
		{"deleted by another client", podOf(running(runs, corev1.ContainerState{}), deleted), nil, ClassDied,
			"its pod was deleted"},
		{"deleted, and its processes killed", podOf(finished(corev1.PodFailed, "", "", ends("Error", 137, ""),
			ends("Error", 137, frozenModules)), func(p *corev1.Pod) { deletedAt(p, 2*time.Hour) }), nil, ClassDied,
			"its pod was deleted"},
		{"deleted, and told so by a signal", podOf(finished(corev1.PodFailed, "", "",
			ends("", 0, lastWords(api.SignalReason, true)), ends("Error", 137, frozenModules)),
			func(p *corev1.Pod) { deletedAt(p, 2*time.Hour) }), nil, ClassDied, "its pod was deleted"},
		{"deleted, and its kernel killed first", podOf(finished(corev1.PodFailed, "", "",
			ends("", 0, lastWords("the kernel's process was killed", false)), ends("Error", 137, frozenModules)),
			func(p *corev1.Pod) { deletedAt(p, 2*time.Hour) }), nil, ClassDied, "its pod was deleted"},
		{"deleted after it had ended", podOf(finished(corev1.PodFailed, "", "", ends("Error", 137, ""),
			ends("Error", 137, frozenModules)), func(p *corev1.Pod) { deletedAt(p, time.Second) }), nil, ClassDied,
			"the kernel's container was killed by signal 9"},
		{"shut down on request before it was deleted", podOf(finished(corev1.PodSucceeded, "", "",
			ends("", 0, lastWords("enough", true)), ends("", 0, "")),
			func(p *corev1.Pod) { deletedAt(p, time.Second) }), nil, ClassDied, "enough"},
		{"scaled down", podOf(running(runs, corev1.ContainerState{}), deleted), []corev1.Event{
			event("cluster-autoscaler", "ScaleDown", "deleting pod for node scale down", time.Minute)}, ClassDied,
			"its node is removed by the autoscaler: deleting pod for node scale down"},
		{"deadline", podOf(finished(corev1.PodFailed, "DeadlineExceeded",
			"Pod was active on the node longer than the specified deadline", runs, runs)), nil,
			ClassDied, "it ran longer than its deadline allows"},
		{"refused by its node", podOf(finished(corev1.PodFailed, "UnexpectedAdmissionError",
			"Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: "+
				"1, Available: 0, which is unexpected", waits("", ""), waits("", ""))), nil,
			ClassNever, "its node refused it: Allocate failed due to requested number of devices unavailable for " +
				"nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected; its devices were not ready, so start it again"},
		{"no room after all", podOf(finished(corev1.PodFailed, "OutOfmemory",
			"Pod was rejected: Node didn't have enough resource: memory", waits("", ""), waits("", ""))), nil,
			ClassNever, "its node refused it: Node didn't have enough resource: memory; other pods had taken the room, " +
				"so start it again"},
		{"a feature that its node lacks, since 1.35", podOf(finished(corev1.PodFailed, "PodFeatureUnsupported",
			"Pod was rejected: Pod requires node features that are not available: InPlacePodVerticalScaling", waits("", ""),
			waits("", ""))), nil,
			ClassNever, "its node refused it: Pod requires node features that are not available: " +
				"InPlacePodVerticalScaling"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Explain(c.pod, c.events, reasonNow)
			if got.Class != c.class || got.Text != c.text {
				t.Errorf("got  %s: %s\nwant %s: %s", got.Class, got.Text, c.class, c.text)
			}
			if got.Class != ClassNone && got.Since.IsZero() || got.Since.After(reasonNow) {
				t.Errorf("since %v", got.Since)
			}
		})
	}
}

// TestExplain_FirstPull: a registry's refusal ends a start when it is repeated, or has lasted for a minute.
func TestExplain_FirstPull(t *testing.T) {
	const why = `failed to pull and unpack image "reg.example/lab/image:2": failed to resolve reference ` +
		`"reg.example/lab/image:2": reg.example/lab/image:2: not found`
	failed := func(reason string) *corev1.Pod { return podOf(running(waits(reason, why), corev1.ContainerState{})) }
	young := func(p *corev1.Pod) *corev1.Pod {
		p.Status.Conditions[0].LastTransitionTime = ago(20 * time.Second)
		return p
	}
	other := pullsFailed(2, 90*time.Second)
	other[0].InvolvedObject.FieldPath = "spec.containers{supervisor}"
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		events []corev1.Event
		class  Class
	}{
		"the first failure":  {failed("ErrImagePull"), pullsFailed(1, 0), ClassWaiting},
		"the pause after it": {failed("ImagePullBackOff"), pullsFailed(1, 9*time.Second), ClassWaiting},
		"the second failure": {failed("ErrImagePull"), pullsFailed(2, 10*time.Second), ClassNever},
		"two failures with different words": {failed("ErrImagePull"), slices.Concat(pullsFailed(1, 9), pullsFailed(1, 1)),
			ClassNever},
		"one failure a minute ago":              {failed("ImagePullBackOff"), pullsFailed(1, time.Minute), ClassNever},
		"failures of another container's image": {failed("ErrImagePull"), other, ClassWaiting},
		"no event yet":                          {failed("ErrImagePull"), nil, ClassWaiting},
		"no event, and a young pod":             {young(failed("ImagePullBackOff")), nil, ClassWaiting},
		"no event, and a pod of 5 minutes":      {failed("ImagePullBackOff"), nil, ClassNever},
		"a bad name":                            {failed("InvalidImageName"), nil, ClassNever},
	} {
		if got := Explain(c.pod, c.events, reasonNow); got.Class != c.class {
			t.Errorf("%s: %s: %s", name, got.Class, got.Text)
		}
	}
}

// Any text in a status gives one line of bounded length.
func TestExplain_Bounds(t *testing.T) {
	nasty := strings.Repeat("a\x1b[31mé\r\n\u202e\u0000 \xff", 400)
	for _, p := range []*corev1.Pod{
		podOf(unschedulable("0/5 nodes are available: " + nasty)),
		podOf(running(waits("ErrImagePull", nasty+": not found"), corev1.ContainerState{})),
		podOf(running(waits("RunContainerError", nasty), corev1.ContainerState{})),
		podOf(running(waits("CrashLoopBackOff", nasty), ends("Error", 1, nasty))),
		podOf(finished(corev1.PodFailed, "Evicted", nasty, runs, runs)),
		podOf(finished(corev1.PodSucceeded, "", "", ends("", 0, lastWords(nasty, false)), runs)),
		podOf(func(p *corev1.Pod) {
			onNode(p)
			p.Spec.Containers[1].Image = nasty
			running(waits("InvalidImageName", ""), runs)(p)
		}),
	} {
		got := Explain(p, []corev1.Event{event("cluster-autoscaler", "NotTriggerScaleUp", nasty, 0)}, reasonNow)
		if n := len([]rune(got.Text)); n == 0 || n > reasonLimit {
			t.Errorf("%d characters: %q", n, got.Text)
		}
		if strings.ContainsFunc(got.Text, func(r rune) bool { return unicode.IsControl(r) || r == '\u202e' }) {
			t.Errorf("control characters in %q", got.Text)
		}
	}
}

func TestKernelEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		text string
	}{
		{"never ended", podOf(running(runs, corev1.ContainerState{})), ""},
		{"has no status", podOf(), ""},
		{"runs again after it ran out of memory", podOf(running(runs, ends("OOMKilled", 137, ""))),
			"the kernel ran out of memory and was killed (limit 8Gi)"},
		{"just ended", podOf(running(ends("Error", 3, "last line"), ends("OOMKilled", 137, ""))),
			"the kernel's container ended with exit code 3: last line"},
		{"killed after the pod was deleted", podOf(running(ends("Error", 137, frozenModules), corev1.ContainerState{}),
			func(p *corev1.Pod) { deletedAt(p, 2*time.Hour) }), "its pod was deleted"},
		{"killed", podOf(running(ends("Error", 137, frozenModules+"bye\n"), corev1.ContainerState{})),
			"the kernel's container was killed by signal 9: bye"},
		{"lost with its node", podOf(running(ends("ContainerStatusUnknown", 137, "The container could not be located"),
			corev1.ContainerState{})),
			"the kernel's container is gone; how it ended is unknown"},
	} {
		if got := KernelEnd(c.pod); got.Text != c.text || (got.Class == ClassDied) != (c.text != "") {
			t.Errorf("%s: got %s %q, want %q", c.name, got.Class, got.Text, c.text)
		}
	}
}

func TestExplainError(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := func(text string) error { return apierrors.NewForbidden(pods, "k-1", errors.New(text)) }
	refused := forbidden("unable to create new content in namespace gone because it is being terminated")
	terminating := refused.(*apierrors.StatusError)
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, c := range []struct {
		name  string
		err   error
		class Class
		text  string
	}{
		{"none", nil, ClassNone, ""},
		{"quota not counted", forbidden("status unknown for quota: team, resources: secrets"), ClassWaiting,
			"the cluster has not counted the quotas of its namespace yet"},
		{"quota in use", forbidden("exceeded quota: team, requested: requests.nvidia.com/gpu=1, used: " +
			"requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4"), ClassWaiting,
			`the quota "team" of its namespace does not allow it: it asks for 1 requests.nvidia.com/gpu, and 4 of 4 are in use`},
		{"quota that would just do", forbidden("exceeded quota: team, requested: pods=3, used: pods=1, limited: pods=3"),
			ClassWaiting,
			`the quota "team" of its namespace does not allow it: it asks for 3 pods, and 1 of 3 are in use`},
		{"quota too small", forbidden("exceeded quota: team, requested: limits.memory=16Gi,pods=1, used: " +
			"limits.memory=0,pods=3, limited: limits.memory=8Gi,pods=3"), ClassNever,
			`the quota "team" of its namespace does not allow it: it asks for 16Gi limits.memory, and 0 of 8Gi are in use; ` +
				`it asks for 1 pods, and 3 of 3 are in use`},
		{"quota wants more", forbidden("failed quota: team: must specify limits.cpu for: kernel"), ClassNever,
			"the cluster does not allow it: failed quota: team: must specify limits.cpu for: kernel"},
		{"bounds of the namespace", forbidden("maximum memory usage per Container is 1Gi, but limit is 2Gi"), ClassNever,
			"the cluster does not allow it: maximum memory usage per Container is 1Gi, but limit is 2Gi"},
		{"policy", forbidden(`violates PodSecurity "restricted:latest": runAsNonRoot != true`), ClassNever,
			`the cluster does not allow it: violates PodSecurity "restricted:latest": runAsNonRoot != true`},
		{"namespace of others",
			apierrors.NewForbidden(pods, "",
				errors.New(`User "system:serviceaccount:ekg:ekg" cannot create resource "pods" in API group "" in the namespace `+
					`"kube-system"`)), ClassNever,
			`the gateway may not create pods in the namespace "kube-system"`},
		{"no right to secrets",
			apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "",
				errors.New(`User "ekg" cannot delete resource "secrets" in API group "" in the namespace "labs"`)), ClassNever,
			`the gateway may not delete secrets in the namespace "labs"`},
		{"namespace that ends", terminating, ClassNever, "its namespace is being deleted"},
		{"namespace that is not there", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "nope"),
			ClassNever,
			`the cluster lacks an object that it needs: namespaces "nope" not found`},
		{"service account", forbidden(`error looking up service account ns/default: serviceaccount "default" not found`),
			ClassWaiting,
			`its service account does not exist: error looking up service account ns/default: ` +
				`serviceaccount "default" not found`},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "k-1", field.ErrorList{
			field.Invalid(field.NewPath("spec", "containers").Index(1).Child("resources", "requests"), "2",
				"must be less than or equal to memory limit of 1Gi"),
			field.Invalid(field.NewPath("spec", "containers").Index(1).Child("env").Index(0).Child("name"), "my secret",
				"a valid environment variable name must")}), ClassNever,
			`the pod is not valid: spec.containers[1].resources.requests: Invalid value: "2": must be less than or equal to ` +
				`memory limit of 1Gi; spec.containers[1].env[0].name: Invalid value`},
		{"webhook", &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest,
			Message: `admission webhook "policy.example" denied the request: no images from there`}}, ClassNever,
			`the cluster does not allow it: admission webhook "policy.example" denied the request: no images from there`},
		{"overloaded", apierrors.NewTooManyRequests("slow down", 1), ClassWaiting,
			"the Kubernetes API cannot answer at this moment: slow down"},
		{"broken", apierrors.NewInternalError(errors.New("etcdserver: leader changed")), ClassWaiting,
			"the Kubernetes API cannot answer at this moment: Internal error occurred: etcdserver: leader changed"},
		{"gone", errors.New("dial tcp 10.0.0.1:443: connect: connection refused"), ClassWaiting,
			"the Kubernetes API cannot be reached at this moment"},
		{"wrapped", fmt.Errorf("kube: %w", forbidden("no")), ClassNever, "the cluster does not allow it: no"},
	} {
		if got := ExplainError(c.err); got.Class != c.class || got.Text != c.text {
			t.Errorf("%s:\ngot  %s: %s\nwant %s: %s", c.name, got.Class, got.Text, c.class, c.text)
		}
	}
}
