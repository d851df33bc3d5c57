package podspec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// AnnotationKernelObjects of a kernel's pod has metadata.ekg.objects of its kernelspec. podbuild.Build writes it as
// JSON. A gateway encrypts it before it creates the pod: users who may read pods must not read Secrets.
const AnnotationKernelObjects = Domain + "kernel-objects"

// LabelObject is on each object that was created with a kernel's pod. Its value is the name in the kernelspec.
const LabelObject = Domain + "object"

// Labels and annotations of a kernel's pod, which is the kernel's record. They stay readable for as long as pods of
// this version may live.
const (
	// Domain begins the keys of ekg's own labels and annotations.
	Domain = "elastic-kernel-gateway.github.io/"

	// LabelKernel is on every pod and secret of a kernel; its value is the kernel's id.
	LabelKernel = Domain + "kernel-id"
	// LabelManagedBy is the standard label that all of ekg's objects have, with the value Manager.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// Manager is the value of LabelManagedBy.
	Manager = "ekg"
	// SelectManaged selects ekg's own objects by LabelManagedBy.
	SelectManaged = LabelManagedBy + "=" + Manager

	AnnotationOwner      = Domain + "owner"       // launcher.Request.Owner
	annotationProfile    = Domain + "profile"     // name of the kernelspec's profile
	annotationSpec       = Domain + "kernelspec"  // name of the kernelspec
	AnnotationGeneration = Domain + "generation"  // number of the pod among its kernel's pods, from 1
	annotationCreated    = Domain + "created"     // when the kernel's first pod was created, in RFC 3339 with nanoseconds
	annotationProtocol   = Domain + "protocol"    // api.ProtocolVersion
	AnnotationKeyVersion = Domain + "key-version" // KeyVersion
	AnnotationMasterKey  = Domain + "master-key"  // MasterKey.Fingerprint
	annotationGroups     = Domain + "groups"      // launcher.Request.Groups in JSON
	AnnotationEnding     = Domain + "ending"      // api.Ending in JSON, if a gateway ended the pod
	AnnotationAdmitted   = Domain + "admitted"    // when limits admitted the pod, in RFC 3339 with nanoseconds
	AnnotationLimit      = Domain + "limit"       // name of the limit that refused the pod, see AnnotationEnding
	AnnotationRejected   = Domain + "rejected"    // why a node has rejected the start's first pod; this is the second one

	// GateLimits is the scheduling gate of a pod until limits have admitted it.
	GateLimits = Domain + "limits"
)

// Names of the pod's containers.
const (
	ContainerSupervisor = "supervisor"
	ContainerKernel     = "kernel"
)

// Record is what a pod's labels and annotations say about its kernel.
type Record struct {
	ID         string    // the kernel's
	Generation int       // number of the pod among its kernel's pods, from 1
	Owner      string    // launcher.Request.Owner
	SpecName   string    // name of the kernelspec
	Created    time.Time // when the kernel's first pod was created
	Protocol   int       // api.ProtocolVersion of the pod's supervisor
	KeyVersion int       // with which DeriveKeys gives the pod's keys
	MasterKey  string    // Fingerprint of the MasterKey of the pod's keys
	Groups     []string  // launcher.Request.Groups
	Flavor     string    // name of the flavor; "" for none
	Profile    string    // name of the kernelspec's profile; "" for none

	// GPUs that the pod counts as for limits. ReadRecord sets it, Write ignores it.
	GPUs gpu.Amount
}

// PodName returns the name of a kernel's pod. Creating a pod is atomic: two starts of one kernel cannot both succeed.
func PodName(id string, generation int) string { return id + "-" + strconv.Itoa(generation) }

// SecretName returns the name of a pod's secret.
func SecretName(pod string) string { return "ekg-" + pod }

// Write sets the name, labels and annotations of a pod.
func (r Record) Write(pod *corev1.Pod) {
	pod.Name = PodName(r.ID, r.Generation)
	set := func(m *map[string]string, key, value string) {
		if *m == nil {
			*m = map[string]string{}
		}
		(*m)[key] = value
	}
	set(&pod.Labels, LabelKernel, r.ID)
	set(&pod.Labels, LabelManagedBy, Manager)
	for key, name := range map[string]string{LabelOwner: r.Owner, LabelSpec: r.SpecName, LabelFlavor: r.Flavor} {
		if name != "" {
			set(&pod.Labels, key, LabelValue(name))
		}
	}
	set(&pod.Annotations, AnnotationOwner, r.Owner)
	set(&pod.Annotations, annotationSpec, r.SpecName)
	set(&pod.Annotations, AnnotationGeneration, strconv.Itoa(r.Generation))
	set(&pod.Annotations, annotationCreated, r.Created.UTC().Format(time.RFC3339Nano))
	set(&pod.Annotations, annotationProtocol, strconv.Itoa(r.Protocol))
	set(&pod.Annotations, AnnotationKeyVersion, strconv.Itoa(r.KeyVersion))
	if r.Flavor != "" {
		set(&pod.Annotations, annotationFlavor, r.Flavor)
	}
	if r.Profile != "" {
		set(&pod.Annotations, annotationProfile, r.Profile)
	}
	if r.MasterKey != "" {
		set(&pod.Annotations, AnnotationMasterKey, r.MasterKey)
	}
	if len(r.Groups) > 0 {
		text, err := json.Marshal(r.Groups)
		if err != nil {
			panic("podspec: names of groups cannot be encoded: " + err.Error()) // any list of strings can be
		}
		set(&pod.Annotations, annotationGroups, string(text))
	}
}

// ReadRecord reads a pod's record. A pod for which it returns an error belongs to no kernel; the error names what is
// missing or invalid.
func ReadRecord(pod *corev1.Pod) (Record, error) {
	r := Record{
		ID:       pod.Labels[LabelKernel],
		Owner:    pod.Annotations[AnnotationOwner],
		SpecName: pod.Annotations[annotationSpec],
		Flavor:   pod.Annotations[annotationFlavor],
		Profile:  pod.Annotations[annotationProfile],
		GPUs:     GPUs(pod),
		// It may hold any text: it is only compared, and printed in quotes.
		MasterKey: pod.Annotations[AnnotationMasterKey],
	}
	if !launcher.ValidID(r.ID) {
		return r, fmt.Errorf("label %s is %q, not a kernel id", LabelKernel, r.ID)
	}
	for key, to := range map[string]*int{
		AnnotationGeneration: &r.Generation, annotationProtocol: &r.Protocol, AnnotationKeyVersion: &r.KeyVersion,
	} {
		n, err := strconv.Atoi(pod.Annotations[key])
		if err != nil || n < 1 {
			return r, fmt.Errorf("annotation %s is %q, not a positive number", key, pod.Annotations[key])
		}
		*to = n
	}
	if text := pod.Annotations[annotationGroups]; text != "" {
		if err := json.Unmarshal([]byte(text), &r.Groups); err != nil {
			return r, fmt.Errorf("annotation %s is not a list of names: %w", annotationGroups, err)
		}
	}
	var err error
	if r.Created, err = time.Parse(time.RFC3339Nano, pod.Annotations[annotationCreated]); err != nil {
		return r, fmt.Errorf("annotation %s is not a time: %w", annotationCreated, err)
	}
	if suffix, ok := strings.CutPrefix(pod.Name, r.ID+"-"); !ok || suffix != strconv.Itoa(r.Generation) {
		return r, fmt.Errorf("its name is not %s", PodName(r.ID, r.Generation))
	}
	return r, nil
}
