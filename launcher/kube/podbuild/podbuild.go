// Package podbuild makes the pod of a kernel and the objects with it, from an allowed wish and the operator's policy.
// It also reads the request back from which a pod was made. Package kube calls it. Begin with Build, then pod.go: its
// base is the smallest pod, and each other file adds one part. Package wish decides what a client may change of it.
//
// Everything is a pure function of its arguments. Nothing here asks a cluster, starts a goroutine or keeps state. All
// functions may be called concurrently, and none modifies its arguments.
package podbuild

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// Build returns the pod of a kernel. The same arguments give the same pod. The error is a *launcher.RefusedError if the
// policy does not allow the pod or the request is wrong. It is a *launcher.FailedError if the kernelspec lacks
// something that a pod needs.
func Build(o Options, req launcher.Request, rec podspec.Record) (*corev1.Pod, error) {
	o = o.withDefaults()
	ext, problems := o.Policy.Read(req.Spec, req.Owner, o.KernelImage)
	if len(problems) > 0 {
		return nil, wish.Refused("kernelspec %s: %s: %s", req.Spec.Name, problems[0].Key, problems[0].Message)
	}
	ext.NameObjects(rec)
	b := builder{o: o, req: req, ext: ext}
	pod := b.base()
	rec.Flavor, rec.Profile = "", req.Spec.Profile
	if req.Flavor != nil {
		rec.Flavor = req.Flavor.Name
	}
	rec.Write(pod)
	if err := storeRequest(pod, req, o.Policy.LabelGroup(req.OwnerGroups)); err != nil {
		return nil, err
	}
	base := pod.DeepCopy()
	for _, over := range []wish.Overlay{ext.AsOverlay(), ext.Pod} {
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
		pod.Annotations[podspec.AnnotationGPUs] = sizeOf(pod, req.Flavor).String()
	}
	if err := b.configureSupervisor(pod); err != nil {
		return nil, err
	}
	if err := b.checkInvariants(pod, base); err != nil {
		return nil, err
	}
	// The client may have chosen the namespace.
	pod.Annotations[podspec.AnnotationKeyVersion] = strconv.Itoa(o.KeyVersion(pod.Namespace))
	return pod, nil
}

// failed returns a *launcher.FailedError for a kernelspec that lacks something.
func failed(format string, args ...any) error {
	return &launcher.FailedError{Reason: fmt.Sprintf(format, args...), Class: launcher.FailedInvalid}
}
