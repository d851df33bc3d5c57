package podbuild

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// annotationRequest has a storedRequest in JSON.
const annotationRequest = podspec.Domain + "request"

// maxRequest bounds annotationRequest, in bytes. All annotations of an object may have 256 KiB, and notes need 128 KiB.
const maxRequest = 112 << 10

// errNoRequest says that a pod has no stored request.
var errNoRequest = &launcher.FailedError{Class: launcher.FailedRefused,
	Reason: "an earlier build of the gateway has made its pod, and this build does not restart it"}

// storedRequest is what Build needs of a launcher.Request besides the Record. The values of the client's variables are
// not repeated here: they are those of the kernel's container, and there may be a megabyte of them.
type storedRequest struct {
	Argv          []string              `json:"argv,omitempty"`
	Image         string                `json:"image,omitempty"`          // kernelspecs.Spec.Image
	LaunchTimeout time.Duration         `json:"launch_timeout,omitempty"` // of the kernelspec
	Env           map[string]string     `json:"env,omitempty"`            // of the kernelspec
	Launcher      *kernelspecs.Launcher `json:"launcher,omitempty"`       // of the kernelspec
	InterruptMode string                `json:"interrupt_mode,omitempty"`
	Extension     json.RawMessage       `json:"extension,omitempty"` // metadata.ekg of the kernelspec
	Cull          kernelspecs.CullTimes `json:"cull,omitzero"`
	Flavor        *flavor.Flavor        `json:"flavor,omitempty"`
	LabelGroup    string                `json:"label_group,omitempty"` // Policy.LabelGroup of launcher.Request.OwnerGroups
	Variables     []string              `json:"variables,omitempty"`   // names of the client's variables, sorted

	// Values are those of variables that the kernel's container does not have: its kernel was warm.
	Values map[string]string `json:"values,omitempty"`
}

// storeRequest records the request in the pod, so that ReadRequest returns it. Of the owner's groups it records only
// the one that a label names.
func storeRequest(pod *corev1.Pod, req launcher.Request, labelGroup string) error {
	stored := storedRequest{
		Argv:          req.Spec.Argv,
		Image:         req.Spec.Image,
		LaunchTimeout: req.Spec.LaunchTimeout,
		Env:           req.Spec.Env,
		Launcher:      req.Spec.Launcher,
		InterruptMode: req.Spec.InterruptMode,
		Cull:          req.Cull,
		Flavor:        storedFlavor(req.Flavor),
		LabelGroup:    labelGroup,
		Variables:     slices.Sorted(maps.Keys(req.Env)),
	}
	if len(req.Spec.Metadata) > 0 {
		var metadata struct {
			EKG json.RawMessage `json:"ekg"`
		}
		if err := json.Unmarshal(req.Spec.Metadata, &metadata); err != nil {
			return failed("kernelspec %s: metadata: %s", req.Spec.Name, err)
		}
		var err error
		if stored.Extension, err = storeObjects(pod, metadata.EKG); err != nil {
			return err
		}
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	if size := len(text) + sealedLength(len(pod.Annotations[podspec.AnnotationKernelObjects])); size > maxRequest {
		return wish.Refused("the kernelspec and the names of the client's variables have %d bytes; a pod can keep %d", size,
			maxRequest)
	}
	pod.Annotations[annotationRequest] = string(text)
	return nil
}

// storedFlavor returns a flavor without who may choose it: a restart does not ask, and the list may be long.
func storedFlavor(f *flavor.Flavor) *flavor.Flavor {
	if f == nil {
		return nil
	}
	stored := *f
	stored.Users, stored.Groups = nil, nil
	return &stored
}

// ReadRequest returns the request from which a kernel's pod was built, so that Build returns the kernel's next pod.
// The request has nothing that the cluster has added to the pod: no annotation, label, container, volume or variable.
// AnnotationKernelObjects of the pod must not be encrypted.
func ReadRequest(pod *corev1.Pod, rec podspec.Record) (launcher.Request, error) {
	text := pod.Annotations[annotationRequest]
	if text == "" {
		return launcher.Request{}, errNoRequest
	}
	var stored storedRequest
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return launcher.Request{}, fmt.Errorf("annotation %s: %w", annotationRequest, err)
	}
	req := launcher.Request{
		ID:     rec.ID,
		Owner:  rec.Owner,
		Groups: rec.Groups,
		Cull:   stored.Cull,
		Flavor: stored.Flavor,
		Spec: kernelspecs.Spec{
			Name:          rec.SpecName,
			Profile:       rec.Profile,
			Argv:          stored.Argv,
			Image:         stored.Image,
			LaunchTimeout: stored.LaunchTimeout,
			Env:           stored.Env,
			Launcher:      stored.Launcher,
			InterruptMode: stored.InterruptMode,
		},
		Env: map[string]string{},
	}
	if stored.LabelGroup != "" {
		req.OwnerGroups = []string{stored.LabelGroup}
	}
	if err := addObjects(pod, &stored); err != nil {
		return launcher.Request{}, err
	}
	if len(stored.Extension) > 0 {
		metadata, err := json.Marshal(map[string]json.RawMessage{"ekg": stored.Extension})
		if err != nil {
			return launcher.Request{}, err
		}
		req.Spec.Metadata = metadata
	}
	k := podspec.KernelOf(pod)
	if k == nil {
		return launcher.Request{}, fmt.Errorf("the pod has no container %s", podspec.ContainerKernel)
	}
	for _, name := range stored.Variables {
		if value, ok := stored.Values[name]; ok {
			req.Env[name] = value
		}
	}
	for _, e := range k.Env {
		_, twice := req.Env[e.Name]
		if _, ok := slices.BinarySearch(stored.Variables, e.Name); ok && !twice && e.ValueFrom == nil {
			req.Env[e.Name] = unescapeDollars(e.Value)
		}
	}
	return req, req.ParseEnv()
}
