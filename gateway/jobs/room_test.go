package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/records"
)

// atOnce calls do for n numbers at the same time, and returns for how many it was not too many.
func atOnce(t *testing.T, n int, do func(i int) error) int {
	t.Helper()
	var all sync.WaitGroup
	var accepted atomic.Int64
	for i := range n {
		all.Go(func() {
			var many *TooManyError
			switch err := do(i); {
			case err == nil:
				accepted.Add(1)
			case !errors.As(err, &many):
				t.Error(err)
			}
		})
	}
	all.Wait()
	return int(accepted.Load())
}

// TestManager_LimitsAtOnce: limits of jobs and definitions hold exactly when requests come at once, over two gateways.
// What is refused leaves nothing, and what has ended makes room.
func TestManager_LimitsAtOnce(t *testing.T) {
	stores := map[string]func() launcher.RecordKeeper{
		"files":  func() launcher.RecordKeeper { return records.NewStore(t.TempDir()) },
		"memory": func() launcher.RecordKeeper { return &launchertest.MemoryRecords{} },
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			keeper, log := open(), slog.New(slog.DiscardHandler)
			policy := Policy{PerUser: 5, Definitions: 5}
			gateways := []*Manager{New(keeper, newCluster(0), policy, log), New(keeper, newCluster(0), policy, log)}
			submitAll := func() int {
				return atOnce(t, 40, func(i int) error {
					_, _, err := gateways[i%2].Submit(t.Context(), submission("eve", fmt.Sprint(i)))
					return err
				})
			}
			if n := submitAll(); n != policy.PerUser {
				t.Errorf("%d jobs were accepted", n)
			}
			if n := submitAll(); n != 0 {
				t.Errorf("%d jobs more were accepted", n)
			}
			n := atOnce(t, 40, func(i int) error {
				_, _, err := gateways[i%2].Define(t.Context(), submission("eve", fmt.Sprint(i)), Change{})
				return err
			})
			if n != policy.Definitions {
				t.Errorf("%d definitions were accepted", n)
			}
			for _, kind := range []string{kindNotebook, kindDefinitionNotebook, kindJob, kindDefinition} {
				if ids, err := keeper.RecordIDs(t.Context(), kind); err != nil || len(ids) != 5 {
					t.Errorf("%d records of the kind %s, %v", len(ids), kind, err)
				}
			}
			if _, _, err := gateways[0].Submit(t.Context(), submission("bob", "his")); err != nil {
				t.Errorf("another user's job: %v", err)
			}
			mine, err := gateways[1].List(t.Context(), func(j *Job) bool { return j.Owner == "eve" })
			if err != nil || len(mine) != 5 {
				t.Fatalf("%d jobs, %v", len(mine), err)
			}
			for _, j := range mine[:2] {
				if _, err := gateways[1].Stop(t.Context(), j.ID); err != nil {
					t.Error(err)
				}
			}
			if n := submitAll(); n != 2 {
				t.Errorf("after two have ended, %d jobs were accepted", n)
			}
			for i, m := range gateways {
				if n := len(m.turns.rooms); n != 0 {
					t.Errorf("gateway %d still has the turns of %d rooms", i, n)
				}
			}
		})
	}
}

// TestManager_RefusedLeavesNothing: a submission or a change that is refused stores no notebook.
func TestManager_RefusedLeavesNothing(t *testing.T) {
	keeper := &small{MemoryRecords: &launchertest.MemoryRecords{}}
	m := New(keeper, newCluster(0), Policy{PerUser: 5}, slog.New(slog.DiscardHandler))
	d, _, err := m.Define(t.Context(), submission("ann", "d"), Change{})
	if err != nil {
		t.Fatal(err)
	}
	submit(t, m, submissionIn("kernel", ThenKeep))
	notebooks := func() (n int) {
		for _, kind := range []string{kindNotebook, kindDefinitionNotebook} {
			ids, err := keeper.RecordIDs(t.Context(), kind)
			if err != nil {
				t.Fatal(err)
			}
			n += len(ids)
		}
		return n
	}
	before := notebooks()
	changed, cron := submission("ann", "d"), "no schedule"
	for what, do := range map[string]func() error{
		"a wrong schedule": func() error {
			_, err := m.ChangeDefinition(t.Context(), d.ID, Change{Submission: &changed, Schedule: &cron})
			return err
		},
		"an occupied kernel": func() error {
			_, _, err := m.Submit(t.Context(), submissionIn("kernel", ThenKeep))
			return err
		},
		"a record that is too large": func() error {
			s := submission("ann", "large")
			s.Start.Env = map[string]string{"V": strings.Repeat("v", 2<<20)}
			_, _, err := m.Submit(t.Context(), s)
			return err
		},
	} {
		if err := do(); err == nil || notebooks() != before {
			t.Errorf("%s: %v leaves %d notebooks", what, err, notebooks()-before)
		}
	}
}

// small is records of at most 1 MiB.
type small struct{ *launchertest.MemoryRecords }

func (s *small) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if len(r.Data) > 1<<20 {
		return r, launcher.ErrRecordTooLarge
	}
	return s.MemoryRecords.CreateRecord(ctx, r)
}

// TestManager_ReservationEnds: a gateway that dies between reservation and job keeps others from the room for a while.
func TestManager_ReservationEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper, log := &launchertest.MemoryRecords{}, slog.New(slog.DiscardHandler)
		a, b := New(keeper, newCluster(0), Policy{PerUser: 1}, log), New(keeper, newCluster(0), Policy{PerUser: 1}, log)
		if _, err := a.reserveJob(t.Context(), "ann", "lost", true); err != nil { // and never released
			t.Fatal(err)
		}
		var many *TooManyError
		if _, _, err := b.Submit(t.Context(), submission("ann", "job")); !errors.As(err, &many) {
			t.Errorf("while it is reserved: %v", err)
		}
		time.Sleep(reserveTime + time.Second)
		submit(t, b, submission("ann", "job"))
	})
}

// TestManager_KeepAtOnce: however many jobs end at once, over two gateways, no more than allowed are kept.
func TestManager_KeepAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &launchertest.MemoryRecords{}
		a, endA := gatewayOf(keeper, newCluster(0), Policy{Keep: 5}, time.Second)
		b, endB := gatewayOf(keeper, newCluster(0), Policy{Keep: 5}, time.Second)
		for i := range 50 {
			m := []*Manager{a, b}[i%2]
			if _, err := m.Stop(t.Context(), submit(t, m, submission("eve", fmt.Sprint(i)))); err != nil {
				t.Fatal(err)
			}
		}
		his := submit(t, a, submission("bob", "his"))
		time.Sleep(time.Minute)
		endA()
		endB()
		if _, err := a.Get(t.Context(), his); err != nil {
			t.Errorf("another user's job: %v", err)
		}
		mine, err := a.List(t.Context(), func(j *Job) bool { return j.Owner == "eve" })
		ids, idErr := keeper.RecordIDs(t.Context(), kindNotebook)
		if err != nil || idErr != nil || len(mine) != 5 || len(ids) != 6 {
			t.Errorf("%d jobs and %d notebooks are kept, %v, %v", len(mine), len(ids), err, idErr)
		}
	})
}

// slowRooms is records whose rooms are read slowly. They may be damaged.
type slowRooms struct {
	*launchertest.MemoryRecords
	takes   time.Duration
	damaged bool
}

func (s *slowRooms) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	if kind != kindRoom {
		return s.MemoryRecords.Record(ctx, kind, id)
	}
	if time.Sleep(s.takes); ctx.Err() != nil {
		return launcher.Record{}, ctx.Err()
	}
	r, err := s.MemoryRecords.Record(ctx, kind, id)
	if err == nil && s.damaged {
		return launcher.Record{Kind: kind, ID: id}, launcher.ErrRecordDamaged
	}
	return r, err
}

func (s *slowRooms) RemoveRecord(ctx context.Context, kind, id string) error {
	if kind == kindRoom {
		s.damaged = false
	}
	return s.MemoryRecords.RemoveRecord(ctx, kind, id)
}

// TestManager_ReleaseBehindOthers: a reservation ends although many others of its owner wait for their turn.
func TestManager_ReleaseBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &slowRooms{MemoryRecords: &launchertest.MemoryRecords{}, takes: 200 * time.Millisecond}
		m := New(records, newCluster(0), Policy{PerUser: 100}, slog.New(slog.DiscardHandler))
		release, err := m.reserveJob(t.Context(), "eve", "stored", true)
		if err != nil {
			t.Fatal(err)
		}
		var others sync.WaitGroup
		for i := range 40 {
			others.Go(func() {
				if _, err := m.reserveJob(t.Context(), "eve", fmt.Sprint(i), true); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		release()
		others.Wait()
		err = m.changeRoom(t.Context(), roomID("jobs", "eve"), func(r room) error {
			if _, there := r["stored"]; there || len(r) != 40 {
				t.Errorf("the room has %d reservations, the one that has ended among them: %v", len(r), there)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestManager_BusyRoom: while others have the turn, a submission over the limit is refused at once, one whose client
// leaves ends, and the schedules of other owners go on. A job that was due then is made later.
func TestManager_BusyRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, end := gatewayOf(&launchertest.MemoryRecords{}, newCluster(9), Policy{PerUser: 1}, time.Second)
		defer end()
		hers, his := define(t, m, "ann", "hers", "@hourly", ""), define(t, m, "bob", "his", "@hourly", "")
		turn, done := m.turns.of(roomID("jobs", "ann"))
		turn <- struct{}{}
		left, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, _, err := m.Submit(left, submission("ann", "left")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client that has left gets %v", err)
		}
		time.Sleep(time.Hour + time.Minute)
		wantDues(t, m, his, "01-01 01:00")
		wantDues(t, m, hers)
		<-turn
		done()
		time.Sleep(time.Minute)
		wantDues(t, m, hers, "01-01 01:00")
		long := New(m.store.keeper, newCluster(0), m.policy, slog.New(slog.DiscardHandler))
		submit(t, long, submission("eve", "waits"))
		other, _ := long.turns.of(roomID("jobs", "eve"))
		other <- struct{}{}
		var many *TooManyError
		if _, _, err := long.Submit(t.Context(), submission("eve", "more")); !errors.As(err, &many) {
			t.Errorf("a submission over the limit gets %v", err)
		}
	})
}

// TestManager_DamagedRoom: a room that cannot be read is made again. Its owner can submit.
func TestManager_DamagedRoom(t *testing.T) {
	records := &slowRooms{MemoryRecords: &launchertest.MemoryRecords{}}
	m := New(records, newCluster(0), Policy{PerUser: 2}, slog.New(slog.DiscardHandler))
	submit(t, m, submission("ann", "first"))
	records.damaged = true
	submit(t, m, submission("ann", "second"))
	var many *TooManyError
	if _, _, err := m.Submit(t.Context(), submission("ann", "third")); !errors.As(err, &many) {
		t.Errorf("a third job: %v", err)
	}
}
