package kube

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// The reaper keeps the DaemonSets that pull the images of kernelspecs ahead. Two reapers at one time would write the
// same, unless they know different kernelspecs: then the next round of the one that stays corrects it.
const (
	// prePullLook is the time after which the DaemonSets are compared again although no kernelspec has changed.
	prePullLook = time.Minute

	selectPrePull = podspec.LabelManagedBy + "=" + podspec.Manager + "," +
		podspec.LabelComponent + "=" + podspec.ComponentPrePull
)

// prePuller keeps the DaemonSets. It belongs to the goroutine of the reaper.
type prePuller struct {
	l      *Launcher
	starts []launcher.Request  // that wanted was made from
	wanted []*appsv1.DaemonSet // by name
	looked time.Time           // when the DaemonSets were compared last
	broken string              // the last failure that was logged
	pulled map[string]bool     // DaemonSets whose images were on all of their nodes at the last look
	off    bool                // nothing is wanted, and nothing is left
}

// round compares the DaemonSets with the kernelspecs, if a kernelspec has changed or some time has passed.
func (p *prePuller) round(ctx context.Context) {
	if p.off {
		return
	}
	now := p.l.timing.now()
	if !p.read() && now.Sub(p.looked) < prePullLook {
		return
	}
	p.looked = now
	err := p.compare(ctx)
	switch {
	case err == nil:
		p.off, p.broken = p.l.opts.PrePull == nil, ""
	case ctx.Err() != nil:
	case p.l.opts.PrePull == nil && apierrors.IsForbidden(err):
		p.off = true // a gateway without the right has not created any
	case err.Error() != p.broken:
		p.broken = err.Error()
		p.l.log.Warn("images cannot be pulled ahead; this is tried again", logkey.Err, err)
	}
}

// read reads the kernelspecs, and reports whether something else than before is wanted.
func (p *prePuller) read() (changed bool) {
	if p.l.opts.PrePull == nil {
		return p.looked.IsZero()
	}
	starts := p.l.opts.PrePull()
	if !p.looked.IsZero() && reflect.DeepEqual(starts, p.starts) {
		return false
	}
	var left []string
	p.starts = starts
	p.wanted, left = podspec.PrePull(p.l.opts.Pods, starts)
	for _, why := range left {
		p.l.log.Warn("an image is not pulled ahead", logkey.Err, why)
	}
	return true
}

// compare creates, updates and removes DaemonSets until they are those that are wanted.
func (p *prePuller) compare(ctx context.Context) error {
	ctx, cancel := p.l.apiContext(ctx)
	defer cancel()
	client := p.l.client.AppsV1().DaemonSets(p.l.opts.Pods.Namespace)
	has, err := client.List(ctx, metav1.ListOptions{LabelSelector: selectPrePull})
	if err != nil {
		return err
	}
	pulled := map[string]bool{}
	missing := slices.Clone(p.wanted)
	for i := range has.Items {
		set := &has.Items[i]
		at := slices.IndexFunc(missing, func(w *appsv1.DaemonSet) bool { return w.Name == set.Name })
		if at < 0 {
			if err := client.Delete(ctx, set.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &set.UID},
			}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return err
			}
			p.l.log.Info("images are no longer pulled ahead", logkey.DaemonSet, set.Name,
				logkey.Images, imagesOf(set))
			continue
		}
		want := missing[at]
		missing = slices.Delete(missing, at, at+1)
		if set.Annotations[podspec.AnnotationContent] == want.Annotations[podspec.AnnotationContent] {
			pulled[set.Name] = p.report(set)
			continue
		}
		next := want.DeepCopy()
		next.ResourceVersion = set.ResourceVersion
		if _, err := client.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return err
		}
		p.l.log.Info("images are pulled ahead as kernelspecs say now", logkey.DaemonSet, want.Name,
			logkey.Images, imagesOf(want))
	}
	for _, want := range missing {
		if _, err := client.Create(ctx, want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		p.l.log.Info("images are pulled ahead", logkey.DaemonSet, want.Name, logkey.Images, imagesOf(want))
	}
	p.pulled = pulled
	return nil
}

// report logs once when all nodes have the images of a DaemonSet, and returns whether they have.
func (p *prePuller) report(set *appsv1.DaemonSet) bool {
	s := set.Status
	all := s.ObservedGeneration == set.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled &&
		s.NumberReady == s.DesiredNumberScheduled
	if all && !p.pulled[set.Name] {
		p.l.log.Info("images are on all nodes", logkey.DaemonSet, set.Name, logkey.Nodes, s.NumberReady)
	}
	return all
}

func imagesOf(set *appsv1.DaemonSet) string { return strings.Join(podspec.PulledImages(set), " ") }
