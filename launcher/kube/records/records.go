// Package records keeps the gateway's records in config maps of the cluster, encrypted. A Store implements
// launcher.RecordKeeper. It starts no goroutine, and has no state but the cluster's.
package records

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Records are config maps in the kernels' namespace. A record has one head, which has its data:
//
//	ekg-record.KIND.ID
//	  labels:     elastic-kernel-gateway.io/record: KIND, and .../record-settled: "true" if it is settled
//	  data:       {"key": FINGERPRINT OF THE MASTER KEY, "pieces": "0"}
//	  binaryData: {"content": ...}
//
// Data over one piece lies in pieces of their own, and the head names their generation:
//
//	ekg-record.KIND.ID              data: {"key": ..., "generation": GENERATION, "pieces": "3"}
//	ekg-record.KIND.ID.GENERATION.0 to .2
//
// A writer creates the pieces of a new generation. Then it writes the head, if that has the expected resource version.
// Then it removes the pieces of the earlier generation. So at each moment the head names pieces that exist. The reaper
// sweeps the pieces that a killed writer leaves behind. A reader that misses a piece reads the head again: the record
// was replaced meanwhile.
//
// The data is compressed and encrypted, see seal.go. So the gateways need no right to read secrets, and people
// who may read config maps do not read notebooks.
const (
	recordPrefix = "ekg-record."

	componentRecord = "record"       // labelComponent of heads
	componentPiece  = "record-piece" // labelComponent of pieces

	labelRecord     = podspec.Domain + "record"            // the record's kind, see podspec.LabelValue
	labelSettled    = podspec.Domain + "record-settled"    // "true" on heads of settled records
	labelGeneration = podspec.Domain + "record-generation" // of the pieces, on a head that has some, and on them

	recordKey     = "key"
	recordPieces  = "pieces"
	recordContent = "content"

	recordPiece  = 768 << 10 // bytes in one object, which may have 1 MiB with everything
	maxRecord    = 24 << 20  // bytes of a record, before they are compressed
	recordPace   = 30 * time.Second
	recordsPage  = 50  // heads in one answer: 50 MiB at most
	namesPage    = 500 // names in one answer
	readAttempts = 10  // at a record that is being replaced
)

// recordName is a record's place in the cluster.
type recordName struct{ kind, id string }

func (n recordName) check() error {
	if !launcher.ValidRecordName(n.kind) || !launcher.ValidRecordName(n.id) {
		return fmt.Errorf("records: %q of the kind %q is not a name", n.id, n.kind)
	}
	return nil
}

// head returns the name of the record's head. Neither kind nor id contains a dot.
func (n recordName) head() string { return recordPrefix + n.kind + "." + n.id }

func (n recordName) piece(generation string, i int) string {
	return n.head() + "." + generation + "." + strconv.Itoa(i)
}

// recordVersion is a head's state: its resource version, and the pieces that it names.
type recordVersion struct {
	resource, generation string
	pieces               int
}

func versionOf(head *corev1.ConfigMap) (v recordVersion, err error) {
	v.resource, v.generation = head.ResourceVersion, head.Labels[labelGeneration]
	v.pieces, err = strconv.Atoi(head.Data[recordPieces])
	if err != nil || v.pieces < 0 || v.pieces > maxRecord/recordPiece+2 || (v.pieces > 0) != (v.generation != "") {
		return v, launcher.ErrRecordDamaged
	}
	return v, nil
}

func (v recordVersion) String() string {
	return fmt.Sprintf("%s.%s.%d", v.resource, v.generation, v.pieces)
}

func parseVersion(text string) (v recordVersion, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return v, false
	}
	n, err := strconv.Atoi(parts[2])
	return recordVersion{parts[0], parts[1], n}, err == nil
}

// Options configures a Store.
type Options struct {
	ConfigMaps corev1client.ConfigMapInterface // of the namespace that has the records
	Keys       podspec.MasterKeys              // the first is for new records
	Log        *slog.Logger

	// Metadata returns the metadata of one page of those config maps, and where the next page begins.
	Metadata func(ctx context.Context, o metav1.ListOptions) (page []metav1.ObjectMeta, next string, err error)
	// Bound bounds one request to the API server.
	Bound func(context.Context) (context.Context, context.CancelFunc)
	// Unavailable returns the error for a request that has failed: ctx's own, or launcher.ErrUnavailable.
	Unavailable func(ctx context.Context, what string, err error) error
	// Now is the time by the API server's clock.
	Now func() time.Time
}

// Store keeps records. All methods may be called concurrently, and by several gateways.
type Store struct{ opts Options }

// New returns the records of a namespace.
func New(o Options) *Store { return &Store{o} }

// MaxRecord returns how many bytes of data a record can have.
func (s *Store) MaxRecord() int64 { return maxRecord }

// RecordPace returns the time between two replacements of a record: etcd keeps all of them for some minutes.
func (s *Store) RecordPace() time.Duration { return recordPace }

// Records returns all records of a kind.
func (s *Store) Records(ctx context.Context, kind string) ([]launcher.Record, error) {
	if err := (recordName{kind, "any"}).check(); err != nil {
		return nil, err
	}
	var heads []corev1.ConfigMap
	options := metav1.ListOptions{LabelSelector: selectRecords(kind), Limit: recordsPage}
	for more := true; more; more = options.Continue != "" {
		asking, cancel := s.opts.Bound(ctx)
		page, err := s.opts.ConfigMaps.List(asking, options)
		cancel()
		if err != nil {
			return nil, s.opts.Unavailable(ctx, "list of records", err)
		}
		heads = append(heads, page.Items...)
		options.Continue = page.Continue
	}
	all := make([]launcher.Record, 0, len(heads))
	for i := range heads {
		id, ok := recordID(kind, heads[i].Name)
		if !ok {
			continue // it has the labels of a record, and is none
		}
		r, err := s.assemble(ctx, recordName{kind, id}, &heads[i])
		switch {
		case errors.Is(err, launcher.ErrNoRecord): // it was removed meanwhile
			continue
		case errors.Is(err, launcher.ErrRecordDamaged):
			s.opts.Log.Error("a record cannot be read", logkey.ConfigMap, heads[i].Name, logkey.Err, err)
		case err != nil:
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func selectRecords(kind string) string {
	return podspec.SelectManaged + "," + podspec.LabelComponent + "=" + componentRecord + "," + labelRecord + "=" +
		podspec.LabelValue(kind)
}

// recordID returns the id of a record of a kind by the name of its head.
func recordID(kind, head string) (id string, ok bool) {
	id, ok = strings.CutPrefix(head, recordPrefix+kind+".")
	return id, ok && launcher.ValidRecordName(id)
}

// RecordIDs returns the ids of all records of a kind.
func (s *Store) RecordIDs(ctx context.Context, kind string) ([]string, error) {
	if err := (recordName{kind, "any"}).check(); err != nil {
		return nil, err
	}
	heads, err := s.recordObjects(ctx, selectRecords(kind))
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(heads))
	for i := range heads {
		if id, ok := recordID(kind, heads[i].Name); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// RecordStamps returns the resource versions of the records of a kind.
func (s *Store) RecordStamps(ctx context.Context, kind string, onlyOpen bool) (map[string]string, error) {
	if err := (recordName{kind, "any"}).check(); err != nil {
		return nil, err
	}
	selector := selectRecords(kind)
	if onlyOpen {
		selector += ",!" + labelSettled
	}
	heads, err := s.recordObjects(ctx, selector)
	stamps := make(map[string]string, len(heads))
	for i := range heads {
		if id, ok := recordID(kind, heads[i].Name); ok {
			stamps[id] = heads[i].ResourceVersion
		}
	}
	return stamps, err
}

// recordObjects returns the metadata of config maps.
func (s *Store) recordObjects(ctx context.Context, selector string) ([]metav1.ObjectMeta, error) {
	var all []metav1.ObjectMeta
	options := metav1.ListOptions{LabelSelector: selector, Limit: namesPage}
	for {
		asking, cancel := s.opts.Bound(ctx)
		page, next, err := s.opts.Metadata(asking, options)
		cancel()
		if err != nil {
			return nil, s.opts.Unavailable(ctx, "list of records", err)
		}
		all = append(all, page...)
		if options.Continue = next; next == "" {
			return all, nil
		}
	}
}

// Record returns one record.
func (s *Store) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	n := recordName{kind, id}
	if err := n.check(); err != nil {
		return launcher.Record{}, err
	}
	head, err := s.recordObject(ctx, n.head())
	if err != nil {
		return launcher.Record{}, err
	}
	return s.assemble(ctx, n, head)
}

// recordObject reads one config map. The error is ErrNoRecord if it is not there.
func (s *Store) recordObject(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	asking, cancel := s.opts.Bound(ctx)
	defer cancel()
	m, err := s.opts.ConfigMaps.Get(asking, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, launcher.ErrNoRecord
	case err != nil:
		return nil, s.opts.Unavailable(ctx, "record", err)
	}
	return m, nil
}

// assemble returns the record of a head. If the head's pieces have gone it reads the head again. A damaged record is
// returned without data.
func (s *Store) assemble(ctx context.Context, n recordName, head *corev1.ConfigMap) (launcher.Record, error) {
	for range readAttempts {
		r := launcher.Record{Kind: n.kind, ID: n.id, Settled: head.Labels[labelSettled] != ""}
		v, err := versionOf(head)
		r.Version = v.String()
		if err != nil {
			return r, err
		}
		sealed := head.BinaryData[recordContent]
		if v.pieces > 0 {
			sealed, err = s.readPieces(ctx, n, v)
		}
		if err == nil {
			r.Data, err = s.openSealed(n, head.Data[recordKey], sealed)
		}
		if !errors.Is(err, launcher.ErrNoRecord) {
			return r, err
		}
		if head, err = s.recordObject(ctx, n.head()); err != nil {
			return launcher.Record{}, err
		}
		if head.ResourceVersion == v.resource {
			return r, launcher.ErrRecordDamaged
		}
	}
	return launcher.Record{}, fmt.Errorf("%w: a record keeps being replaced", launcher.ErrUnavailable)
}

// readPieces returns the content of a record's pieces. The error is ErrNoRecord if one is not there.
func (s *Store) readPieces(ctx context.Context, n recordName, v recordVersion) ([]byte, error) {
	var all []byte
	for i := range v.pieces {
		m, err := s.recordObject(ctx, n.piece(v.generation, i))
		if err != nil {
			return nil, err
		}
		all = append(all, m.BinaryData[recordContent]...)
	}
	return all, nil
}

// newGeneration returns a name that no other writer's pieces have.
func newGeneration() string { return strconv.FormatUint(rand.Uint64(), 36) }
