package kube

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// What marks a kernel's pod. The pod is the kernel's record: these stay readable for as long as pods of this version may live.
const (
	domain = "elastic-kernel-gateway.github.io/"

	// LabelKernel is on every pod and secret of a kernel; its value is the kernel's id.
	LabelKernel = domain + "kernel-id"
	// LabelManagedBy is the standard label that all of ekg's objects have, with the value Manager.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// Manager is the value of LabelManagedBy.
	Manager = "ekg"

	annotationOwner      = domain + "owner"      // launcher.Request.Owner
	annotationSpec       = domain + "kernelspec" // name of the kernelspec
	annotationGeneration = domain + "generation" // counts the pods that a kernel has had, from 1
	annotationCreated    = domain + "created"    // of the kernel, in RFC 3339 with nanoseconds; the first pod's, and passed on
	annotationProtocol   = domain + "protocol"   // supervisor.ProtocolVersion
	annotationKeyVersion = domain + "key-version"
	annotationSessions   = domain + "sessions"    // []launcher.Session in JSON
	annotationShared     = domain + "shared-with" // []launcher.Grant in JSON
	annotationClaimed    = domain + "claimed"     // unclaimed from its creation until a client is known to know of the kernel, then claimed
	annotationEnding     = domain + "ending"      // supervisor.Ending in JSON, where a gateway had to end the pod by itself
	annotationGroups     = domain + "groups"      // launcher.Request.Groups in JSON
	annotationTerm       = domain + "term"        // who decides about limits has seen the pod since, see beginTerm
	annotationAdmitted   = domain + "admitted"    // when it was decided that limits allow the pod, in RFC 3339 with nanoseconds
	annotationLimit      = domain + "limit"       // name of the one that does not; annotationEnding says why
)

// Values of annotationClaimed.
const (
	unclaimed = "false"
	claimed   = "true"
)

// The pod's containers.
const (
	containerSupervisor = "supervisor"
	containerKernel     = "kernel"
)

// record is what is known of a kernel from its pod's metadata.
type record struct {
	id         string
	generation int
	owner      string
	spec       string
	created    time.Time
	protocol   int
	keyVersion int
	groups     []string
}

// podName names the pod of a kernel's generation. Its creation is atomic: two starts of one kernel cannot both succeed.
func podName(id string, generation int) string { return id + "-" + strconv.Itoa(generation) }

// secretName names the secret of a pod.
func secretName(pod string) string { return "ekg-" + pod }

// write puts the record into a pod's labels and annotations.
func (r record) write(pod *corev1.Pod) {
	pod.Name = podName(r.id, r.generation)
	set := func(m *map[string]string, key, value string) {
		if *m == nil {
			*m = map[string]string{}
		}
		(*m)[key] = value
	}
	set(&pod.Labels, LabelKernel, r.id)
	set(&pod.Labels, LabelManagedBy, Manager)
	set(&pod.Annotations, annotationOwner, r.owner)
	set(&pod.Annotations, annotationSpec, r.spec)
	set(&pod.Annotations, annotationGeneration, strconv.Itoa(r.generation))
	set(&pod.Annotations, annotationCreated, r.created.UTC().Format(time.RFC3339Nano))
	set(&pod.Annotations, annotationProtocol, strconv.Itoa(r.protocol))
	set(&pod.Annotations, annotationKeyVersion, strconv.Itoa(r.keyVersion))
	if len(r.groups) > 0 {
		text, err := json.Marshal(r.groups)
		if err != nil {
			panic("kube: names of groups cannot be written: " + err.Error()) // every text can be
		}
		set(&pod.Annotations, annotationGroups, string(text))
	}
}

// readRecord reads a pod's record. The error names what is missing or wrong: such a pod is nobody's kernel.
func readRecord(pod *corev1.Pod) (record, error) {
	r := record{id: pod.Labels[LabelKernel], owner: pod.Annotations[annotationOwner], spec: pod.Annotations[annotationSpec]}
	if !launcher.ValidID(r.id) {
		return r, fmt.Errorf("label %s is %q, not a kernel id", LabelKernel, r.id)
	}
	for key, to := range map[string]*int{annotationGeneration: &r.generation, annotationProtocol: &r.protocol, annotationKeyVersion: &r.keyVersion} {
		n, err := strconv.Atoi(pod.Annotations[key])
		if err != nil || n < 1 {
			return r, fmt.Errorf("annotation %s is %q, not a number from 1 on", key, pod.Annotations[key])
		}
		*to = n
	}
	if text := pod.Annotations[annotationGroups]; text != "" {
		if err := json.Unmarshal([]byte(text), &r.groups); err != nil {
			return r, fmt.Errorf("annotation %s is no list of names: %w", annotationGroups, err)
		}
	}
	var err error
	if r.created, err = time.Parse(time.RFC3339Nano, pod.Annotations[annotationCreated]); err != nil {
		return r, fmt.Errorf("annotation %s is not a time: %w", annotationCreated, err)
	}
	if suffix, ok := strings.CutPrefix(pod.Name, r.id+"-"); !ok || suffix != strconv.Itoa(r.generation) {
		return r, fmt.Errorf("its name is not %s", podName(r.id, r.generation))
	}
	return r, nil
}
