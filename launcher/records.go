package launcher

import (
	"context"
	"errors"
	"regexp"
	"time"
)

// Errors of a RecordKeeper, tested with errors.Is.
var (
	// ErrNoRecord says that there is no record with the kind and the id.
	ErrNoRecord = errors.New("record not found")
	// ErrRecordChanged says that the record exists already, or that another gateway has changed or removed it.
	ErrRecordChanged = errors.New("record was changed by another gateway")
	// ErrRecordTooLarge says that the launcher cannot keep so much data in one record.
	ErrRecordTooLarge = errors.New("record is too large")
	// ErrRecordDamaged says that a record is there and can never be read: a part of it was removed or changed, or it is
	// encrypted with a key that this gateway does not have.
	ErrRecordDamaged = errors.New("record is damaged, or encrypted with another master key")
)

// Record is a piece of data that outlives gateways and kernels.
type Record struct {
	Kind, ID string // each as ValidRecordName demands
	Data     []byte
	Version  string // of the record's content; opaque

	// Settled says that the record will hardly change any more. RecordStamps can leave it out.
	Settled bool
}

// RecordKeeper keeps records for the gateway. Launchers implement it. All gateways of a launcher's state
// directory or cluster see the same records. A record that was created or replaced stays, also if every gateway is
// killed at that moment. All methods may be called concurrently. An error that is none of the above is
// ErrUnavailable or ctx's.
type RecordKeeper interface {
	// Records returns all records of a kind, in any order. A damaged record is there without data.
	Records(ctx context.Context, kind string) ([]Record, error)

	// RecordIDs returns the ids of all records of a kind, in any order. It costs less than Records.
	RecordIDs(ctx context.Context, kind string) ([]string, error)

	// RecordStamps returns the ids of all records of a kind, or of those that are not settled, with a text that is another
	// one when a record was replaced. "" is not known. It costs as little as RecordIDs.
	RecordStamps(ctx context.Context, kind string, onlyOpen bool) (map[string]string, error)

	// Record returns one record, or ErrNoRecord or ErrRecordDamaged.
	Record(ctx context.Context, kind, id string) (Record, error)

	// CreateRecord stores a new record and returns it with its version. The error is ErrRecordChanged if it exists.
	CreateRecord(ctx context.Context, r Record) (Record, error)

	// ReplaceRecord stores other data for a record if its version is still r.Version, and returns it with its new
	// version. The error is ErrRecordChanged otherwise.
	ReplaceRecord(ctx context.Context, r Record) (Record, error)

	// RemoveRecord removes a record. A record that is not there is removed already.
	RemoveRecord(ctx context.Context, kind, id string) error

	// MaxRecord returns how many bytes of data a record can always have.
	MaxRecord() int64

	// RecordPace returns the time between two replacements of a record that changes all the time.
	RecordPace() time.Duration
}

var recordName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$`)

// ValidRecordName reports whether a text can be a record's kind or id: lower case letters, digits and hyphens, at most
// 100 of them. So it can be a part of a file's or an object's name.
func ValidRecordName(name string) bool { return recordName.MatchString(name) }
