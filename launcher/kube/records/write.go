package records

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	recordTime = 5 * time.Minute // for one write: a slower one fails before it writes the head
	orphanAge  = time.Hour       // of pieces that no head names; their writer has failed by then
)

// CreateRecord stores a new record.
func (s *Store) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	return s.writeRecord(ctx, r, recordVersion{})
}

// ReplaceRecord stores other data for a record.
func (s *Store) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	before, ok := parseVersion(r.Version)
	if !ok || before.resource == "" {
		return launcher.Record{}, launcher.ErrRecordChanged
	}
	return s.writeRecord(ctx, r, before)
}

// writeRecord writes a record if the present one has the given version; the zero value means that there is none.
func (s *Store) writeRecord(
	ctx context.Context, r launcher.Record, before recordVersion,
) (launcher.Record, error) {
	n := recordName{r.Kind, r.ID}
	if err := n.check(); err != nil {
		return launcher.Record{}, err
	}
	if len(r.Data) > maxRecord {
		return launcher.Record{}, launcher.ErrRecordTooLarge
	}
	sealed, err := s.seal(n, r.Data)
	if err != nil {
		return launcher.Record{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	head := s.newHead(n, before.resource, r.Settled)
	var now recordVersion
	if len(sealed) <= recordPiece {
		head.BinaryData = map[string][]byte{recordContent: sealed}
	} else {
		now.generation = newGeneration()
		if now.pieces, err = s.createPieces(ctx, n, now.generation, sealed); err != nil {
			s.removePieces(ctx, n, now)
			return launcher.Record{}, err
		}
		head.Labels[labelGeneration] = now.generation
	}
	head.Data[recordPieces] = strconv.Itoa(now.pieces)
	written, err := s.writeHead(ctx, head)
	if err != nil {
		if !errors.Is(err, launcher.ErrUnavailable) && ctx.Err() == nil { // else the head may be written
			s.removePieces(ctx, n, now)
		}
		return launcher.Record{}, err
	}
	s.removePieces(ctx, n, before)
	now.resource = written.ResourceVersion
	return launcher.Record{Kind: r.Kind, ID: r.ID, Data: append([]byte(nil), r.Data...), Version: now.String(),
		Settled: r.Settled}, nil
}

// newHead returns a head without content.
func (s *Store) newHead(n recordName, resourceVersion string, settled bool) *corev1.ConfigMap {
	head := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: n.head(), ResourceVersion: resourceVersion,
			Labels: map[string]string{
				podspec.LabelManagedBy: podspec.Manager,
				podspec.LabelComponent: componentRecord,
				labelRecord:            podspec.LabelValue(n.kind),
			}},
		Data: map[string]string{recordKey: s.opts.Keys[0].Fingerprint},
	}
	if settled {
		head.Labels[labelSettled] = "true"
	}
	return head
}

// writeHead creates a head that has no resource version, and updates others.
func (s *Store) writeHead(ctx context.Context, head *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	asking, cancel := s.opts.Bound(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	maps := s.opts.ConfigMaps
	var written *corev1.ConfigMap
	var err error
	if head.ResourceVersion == "" {
		written, err = maps.Create(asking, head, metav1.CreateOptions{})
	} else {
		written, err = maps.Update(asking, head, metav1.UpdateOptions{})
	}
	switch {
	case err == nil:
		return written, nil
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err),
		apierrors.IsNotFound(err) && head.ResourceVersion != "":
		return nil, launcher.ErrRecordChanged
	case podstatus.IsTooLarge(err):
		return nil, launcher.ErrRecordTooLarge
	}
	return nil, s.opts.Unavailable(ctx, "change of a record", err)
}

// createPieces creates the pieces of a generation, and returns how many it has begun to create.
func (s *Store) createPieces(ctx context.Context, n recordName, generation string, sealed []byte) (int, error) {
	count := 0
	for ; len(sealed) > 0; count++ {
		size := min(len(sealed), recordPiece)
		m := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: n.piece(generation, count),
				Labels: map[string]string{
					podspec.LabelManagedBy: podspec.Manager,
					podspec.LabelComponent: componentPiece,
					labelRecord:            podspec.LabelValue(n.kind),
					labelGeneration:        generation,
				}},
			BinaryData: map[string][]byte{recordContent: sealed[:size]},
			Immutable:  new(true),
		}
		sealed = sealed[size:]
		asking, cancel := s.opts.Bound(ctx)
		_, err := s.opts.ConfigMaps.Create(asking, m, metav1.CreateOptions{})
		cancel()
		if podstatus.IsTooLarge(err) {
			return count, launcher.ErrRecordTooLarge
		}
		if err != nil {
			return count + 1, s.opts.Unavailable(ctx, "a piece of a record", err)
		}
	}
	return count, nil
}

// removePieces removes the pieces that a version of a head has named. Sweep removes those that it cannot remove.
func (s *Store) removePieces(ctx context.Context, n recordName, v recordVersion) {
	for i := range v.pieces {
		name := n.piece(v.generation, i)
		if err := s.removeRecordObject(ctx, name, metav1.DeleteOptions{}); err != nil {
			s.opts.Log.Info("a piece of an old record is removed later", logkey.ConfigMap, name, logkey.Err, err)
			return
		}
	}
}

func (s *Store) removeRecordObject(ctx context.Context, name string, o metav1.DeleteOptions) error {
	asking, cancel := s.opts.Bound(ctx)
	defer cancel()
	err := s.opts.ConfigMaps.Delete(asking, name, o)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // a conflict: another object has the name by now
	}
	return s.opts.Unavailable(ctx, "removal of a record", err)
}

// RemoveRecord removes a record: its head first, then its pieces.
func (s *Store) RemoveRecord(ctx context.Context, kind, id string) error {
	n := recordName{kind, id}
	if err := n.check(); err != nil {
		return err
	}
	head, err := s.recordObject(ctx, n.head())
	if errors.Is(err, launcher.ErrNoRecord) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.removeRecordObject(ctx, n.head(), metav1.DeleteOptions{}); err != nil {
		return err
	}
	if v, err := versionOf(head); err == nil {
		s.removePieces(ctx, n, v)
	}
	return nil
}

// Sweep removes pieces that no head names. The pieces are listed before the heads: a head that was written in
// between is seen.
func (s *Store) Sweep(ctx context.Context) error {
	pieces, err := s.recordObjects(ctx, podspec.SelectManaged+","+podspec.LabelComponent+"="+componentPiece)
	if err != nil || len(pieces) == 0 {
		return err
	}
	heads, err := s.recordObjects(ctx,
		podspec.SelectManaged+","+podspec.LabelComponent+"="+componentRecord+","+labelGeneration)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for i := range heads {
		named[heads[i].Name+"."+heads[i].Labels[labelGeneration]] = true
	}
	for i := range pieces {
		p := &pieces[i]
		if named[strings.TrimSuffix(p.Name, path.Ext(p.Name))] || s.opts.Now().Sub(p.CreationTimestamp.Time) < orphanAge {
			continue
		}
		if err := s.removeRecordObject(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: &p.UID}}); err != nil {
			return fmt.Errorf("config map %s: %w", p.Name, err)
		}
		s.opts.Log.Info("a piece of an old record was removed", logkey.ConfigMap, p.Name)
	}
	return nil
}
