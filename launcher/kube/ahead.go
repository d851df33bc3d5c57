package kube

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// missingAhead is the reason where fewer pods exist than are wanted, and nothing else is known.
const missingAhead = "not all of its pods have been created"

// watchPlaceholders watches the pods that keep room, if there may be any.
func (l *Launcher) watchPlaceholders() (err error) {
	if l.opts.Pods.PlaceholderClass != "" && (l.opts.Flavors != nil || l.opts.Rooms != nil) {
		l.rooms, err = l.watchOwn("placeholders", selectPlaceholderPods)
	}
	return err
}

// ahead returns what is kept ready.
func (l *Launcher) ahead() []launcher.Ahead { return append(l.placeholdersAhead(), l.warmAhead()...) }

// placeholdersAhead returns the placeholders of each flavor and kernelspec that wants some.
func (l *Launcher) placeholdersAhead() (all []launcher.Ahead) {
	if l.rooms == nil {
		return nil
	}
	pods := map[string][]*corev1.Pod{}
	for _, o := range l.rooms.GetStore().List() {
		if pod, ok := o.(*corev1.Pod); ok && pod.DeletionTimestamp == nil && !podstatus.HasEnded(pod) {
			name := pod.Labels[podspec.LabelPlaceholder]
			pods[name] = append(pods[name], pod)
		}
	}
	if l.opts.Flavors != nil {
		flavors := l.opts.Flavors()
		for i := range flavors {
			if f := &flavors[i]; f.Placeholders > 0 {
				a := launcher.Ahead{Kind: launcher.AheadPlaceholder, Flavor: f.Name, Wanted: f.Placeholders}
				all = append(all, l.count(a, pods[podspec.NameOfFlavorRoom(f.Name)]))
			}
		}
	}
	if l.opts.Rooms != nil {
		for _, r := range l.opts.Rooms() {
			a := launcher.Ahead{Kind: launcher.AheadPlaceholder, SpecName: r.Start.Spec.Name, Wanted: r.Count}
			if r.Start.Flavor != nil {
				a.Flavor = r.Start.Flavor.Name
			}
			all = append(all, l.count(a, pods[podspec.NameOfRoom(r.Start.Spec.Name)]))
		}
	}
	return all
}

// warmAhead returns the warm kernels of each kernelspec that wants some.
func (l *Launcher) warmAhead() (all []launcher.Ahead) {
	if l.warm.pods == nil {
		return nil
	}
	pods := map[string][]*corev1.Pod{}
	for _, pod := range l.warmPods() {
		name := specOf(pod)
		pods[name] = append(pods[name], pod)
	}
	for _, w := range l.opts.Warm() {
		a := launcher.Ahead{Kind: launcher.AheadWarm, SpecName: w.Start.Spec.Name, Wanted: w.Count}
		if w.Start.Flavor != nil {
			a.Flavor = w.Start.Flavor.Name
		}
		l.mu.Lock()
		a.Reason = l.warm.ledger.Reason(a.SpecName)
		l.mu.Unlock()
		all = append(all, l.count(a, pods[a.SpecName]))
	}
	return all
}

// count adds the numbers of pods, and the reason of the first one that waits for a node.
func (l *Launcher) count(a launcher.Ahead, pods []*corev1.Pod) launcher.Ahead {
	waits := ""
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			a.Ready++
			continue
		}
		if a.Waiting++; waits == "" {
			waits = podstatus.Explain(pod, l.eventsOf(pod), l.clusterNow()).Text
		}
	}
	switch {
	case waits != "":
		a.Reason = waits
	case a.Ready+a.Waiting >= a.Wanted:
		a.Reason = ""
	case a.Reason == "":
		a.Reason = missingAhead
	}
	return a
}
