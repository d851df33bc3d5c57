package kube

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	// fieldManager names the gateways as the writers of objects that they apply. All replicas are one writer.
	fieldManager = "ekg"

	selectPlaceholders = podspec.LabelManagedBy + "=" + podspec.Manager + "," +
		podspec.LabelComponent + "=" + podspec.ComponentPlaceholder
	selectPlaceholderPods = podspec.LabelComponent + "=" + podspec.ComponentPlaceholder
)

// placeholders keeps the Deployments whose pods keep room for kernels. It belongs to the goroutine of the reaper. Two
// reapers at one time would apply the same, unless they know different flavors or kernelspecs.
type placeholders struct {
	l       *Launcher
	flavors []flavor.Flavor // that were compared last
	rooms   []podspec.Room  // of kernelspecs, that were compared last
	left    []string        // kernelspecs that can have none, as they were logged last
	looked  time.Time       // when that was; zero: never
	broken  string          // the last failure that was logged
	off     bool            // nothing is wanted, and nothing is left
}

// round compares the Deployments with the flavors and kernelspecs, if these have changed or some time has passed.
func (p *placeholders) round(ctx context.Context) {
	if p.off {
		return
	}
	var flavors []flavor.Flavor
	var rooms []podspec.Room
	class := p.l.opts.Pods.PlaceholderClass != ""
	wanted := class && (p.l.opts.Flavors != nil || p.l.opts.Rooms != nil)
	if class && p.l.opts.Flavors != nil {
		flavors = p.l.opts.Flavors()
	}
	if class && p.l.opts.Rooms != nil {
		rooms = p.l.opts.Rooms()
	}
	now := p.l.timing.now()
	if !p.looked.IsZero() && reflect.DeepEqual(flavors, p.flavors) && reflect.DeepEqual(rooms, p.rooms) &&
		now.Sub(p.looked) < prePullLook {
		return
	}
	p.looked, p.flavors, p.rooms = now, flavors, rooms
	sets, left := podspec.Placeholders(p.l.opts.Pods, flavors, rooms)
	if !slices.Equal(left, p.left) {
		for _, why := range left {
			p.l.log.Warn("a kernelspec has no placeholders", logkey.Err, why)
		}
		p.left = left
	}
	err := p.compare(ctx, sets)
	switch {
	case err == nil:
		p.off, p.broken = !wanted, ""
	case ctx.Err() != nil:
	case !wanted && apierrors.IsForbidden(err):
		p.off = true // a gateway without the right has not created any
	case err.Error() != p.broken:
		p.broken = err.Error()
		p.l.log.Warn("placeholders cannot be kept; this is tried again", logkey.Err, err)
	}
}

// compare applies and removes Deployments until they are those that are wanted.
func (p *placeholders) compare(ctx context.Context, wanted []*appsv1.Deployment) error {
	ctx, cancel := p.l.apiContext(ctx)
	defer cancel()
	client := p.l.client.AppsV1().Deployments(p.l.opts.Pods.Namespace)
	has, err := client.List(ctx, metav1.ListOptions{LabelSelector: selectPlaceholders})
	if err != nil {
		return err
	}
	present := map[string]*appsv1.Deployment{}
	for i := range has.Items {
		set := &has.Items[i]
		if slices.ContainsFunc(wanted, func(w *appsv1.Deployment) bool { return w.Name == set.Name }) {
			present[set.Name] = set
			continue
		}
		if err := client.Delete(ctx, set.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &set.UID},
		}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
		p.l.log.Info("placeholders were removed", logkey.Deployed, set.Name)
	}
	for _, want := range wanted {
		if set := present[want.Name]; set != nil && reflect.DeepEqual(set.Spec.Replicas, want.Spec.Replicas) &&
			set.Annotations[podspec.AnnotationContent] == want.Annotations[podspec.AnnotationContent] {
			continue
		}
		text, err := json.Marshal(want)
		if err != nil {
			return err
		}
		if _, err := client.Patch(ctx, want.Name, types.ApplyPatchType, text,
			metav1.PatchOptions{FieldManager: fieldManager, Force: new(true)}); err != nil {
			return err
		}
		p.l.log.Info("placeholders are kept", logkey.Deployed, want.Name, logkey.Pods, *want.Spec.Replicas)
	}
	return nil
}
