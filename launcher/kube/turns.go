package kube

import (
	"context"
	"errors"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/seats"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// turns adapts a Launcher to package seats: the kernels of several pods take turns at one GPU.
type turns struct{ l *Launcher }

func (t turns) newServer() *seats.Server {
	l := t.l
	return seats.New(seats.Options{Leases: l.opts.Cluster.Leases.CoordinationV1().Leases(l.opts.Pods.Namespace),
		Labels:  map[string]string{podspec.LabelManagedBy: podspec.Manager},
		Members: t.members, Gone: t.gone, Tell: t.tell, Now: l.clusterNow, Log: l.log})
}

// members returns the kernels that take turns and that this gateway hears.
func (t turns) members() (all []seats.Member) {
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	for _, k := range t.l.kernels {
		st := &k.supervisor.Status
		if !k.supervisor.Streaming || st.Seat == nil || st.Seat.GPU == "" || k.removed {
			continue
		}
		all = append(all, seats.Member{Seat: *st.Seat, Place: seats.Place{Kernel: k.id, Namespace: k.pod.Namespace,
			Pod: k.pod.Name, UID: string(k.pod.UID)}})
	}
	return all
}

// gone reports whether a pod has no processes any more. Only the cluster knows that of a pod that is not known here.
func (t turns) gone(ctx context.Context, p seats.Place) (bool, error) {
	t.l.mu.Lock()
	k := t.l.kernels[p.Kernel]
	lives := k != nil && string(k.pod.UID) == p.UID && !k.removed && !podstatus.HasEnded(k.pod)
	t.l.mu.Unlock()
	if lives {
		return false, nil
	}
	pod, err := t.l.askForPod(ctx, p.Namespace, p.Pod)
	return err == nil && (pod == nil || string(pod.UID) != p.UID || podstatus.HasEnded(pod)), err
}

// tell tells a kernel's supervisor whose turn it is.
func (t turns) tell(ctx context.Context, m seats.Member, n api.SeatNews) error {
	t.l.mu.Lock()
	k := t.l.kernels[m.Kernel]
	if k == nil || string(k.pod.UID) != m.UID {
		t.l.mu.Unlock()
		return errors.New("its pod is not known any more")
	}
	pod := k.pod
	t.l.mu.Unlock()
	client, err := t.l.supervisors.Client(pod)
	if err != nil {
		return err
	}
	return client.SetSeat(ctx, n)
}
