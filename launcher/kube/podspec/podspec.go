// Package podspec builds the pod and the secret of a kernel, from a kernelspec, a client's request and the operator's
// policy. It also reads the record of a kernel back from its pod. Package kube calls it. Begin with Build, then pod.go:
// its base is the smallest pod, and each other file adds or checks one part. policy.go has the operator's policy, and
// record.go has what a pod's labels and annotations store.
//
// Everything is a pure function of its arguments. Nothing here asks a cluster, starts a goroutine or keeps state. All
// functions may be called concurrently, and none modifies its arguments.
package podspec

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Build returns the pod of a kernel. The same arguments give the same pod. The error is a *launcher.RefusedError if the
// policy does not allow the pod or the request is wrong. It is a *launcher.FailedError if the kernelspec lacks
// something that a pod needs.
func Build(o Options, req launcher.Request, rec Record) (*corev1.Pod, error) {
	o = o.withDefaults()
	ext, problems := o.readExtension(req.Spec, req.Owner)
	if len(problems) > 0 {
		return nil, refused("kernelspec %s: %s: %s", req.Spec.Name, problems[0].Key, problems[0].Message)
	}
	ext.nameObjects(rec)
	b := builder{o: o, req: req, ext: ext}
	pod := b.base()
	rec.Flavor, rec.Profile = "", req.Spec.Profile
	if req.Flavor != nil {
		rec.Flavor = req.Flavor.Name
	}
	rec.Write(pod)
	if err := storeRequest(pod, req, o.Policy.labelGroup(req.OwnerGroups)); err != nil {
		return nil, err
	}
	base := pod.DeepCopy()
	for _, over := range []overlay{ext.asOverlay(), ext.Pod} {
		var err error
		if pod, err = applyOverlay(pod, over); err != nil {
			return nil, fmt.Errorf("kernelspec %s: %w", req.Spec.Name, err)
		}
	}
	b.addExtras(pod)
	if err := b.addDriver(pod); err != nil {
		return nil, err
	}
	if req.Flavor != nil {
		applyFlavor(pod, req.Flavor)
	}
	if err := b.applyClient(pod); err != nil {
		return nil, err
	}
	if err := b.complete(pod); err != nil {
		return nil, err
	}
	if req.Flavor != nil {
		pod.Annotations[annotationGPUs] = sizeOf(pod, req.Flavor).String()
	}
	if err := b.configureSupervisor(pod); err != nil {
		return nil, err
	}
	if err := b.checkInvariants(pod, base); err != nil {
		return nil, err
	}
	// The client may have chosen the namespace.
	pod.Annotations[annotationKeyVersion] = strconv.Itoa(o.KeyVersion(pod.Namespace))
	return pod, nil
}

func refused(format string, args ...any) error {
	return &launcher.RefusedError{Reason: fmt.Sprintf(format, args...)}
}

func failed(format string, args ...any) error {
	return &launcher.FailedError{Reason: fmt.Sprintf(format, args...), Class: launcher.FailedInvalid}
}
