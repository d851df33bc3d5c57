package parker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// beginParked begins the life of a kernel that has just been parked, and whose GPU is free now.
func beginParked(t *testing.T) *kernel {
	t.Helper()
	k := &kernel{cuda: gpu.CUDARunning, holds: true}
	begin(t, k)
	k.is(t, 2*time.Minute, api.GPUParked, "")
	k.set(func() { k.alone, k.bare = true, true }) // asking does not take it
	return k
}

// expect says that a cell will follow, and checks the state after a time.
func (k *kernel) expect(t *testing.T, after time.Duration, state api.ParkState) {
	t.Helper()
	k.set(k.ExpectCell)
	k.is(t, after, state, "")
}

// A parked kernel takes its GPU ahead of a cell if the GPU is free and no other kernel waits for it. It never waits.
func TestParker_Ahead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := beginParked(t)
		k.set(func() { k.taken = true })
		k.expect(t, 10*time.Second, api.GPUParked)
		k.set(func() { k.taken, k.alone = false, false })
		k.expect(t, 10*time.Second, api.GPUParked)
		k.set(func() { k.alone = true })
		k.is(t, time.Second, api.GPUHeld, "") // the sign still counts
		if k.waits != 0 {
			t.Errorf("it has joined the line %d times", k.waits)
		}
		k.set(func() {
			if got := k.Wakes(); got.Waits != (api.Durations{}) || got.Restores == (api.Durations{}) {
				t.Errorf("counted is %+v", got)
			}
		})
	})
}

// The GPU that was taken ahead of a cell is given back after 30 s without a cell and without a further sign, and at
// once if another kernel wants it. It is not taken again at once.
func TestParker_AheadGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := beginParked(t)
		k.expect(t, 0, api.GPUHeld)
		k.is(t, 28*time.Second, api.GPUHeld, "")
		k.is(t, 4*time.Second, api.GPUParked, "")
		k.is(t, time.Hour, api.GPUParked, "")

		k.expect(t, 25*time.Second, api.GPUHeld)
		k.expect(t, 25*time.Second, api.GPUHeld)
		k.expect(t, time.Second, api.GPUHeld)
		k.set(func() { k.alone = false })
		k.is(t, 2*time.Second, api.GPUParked, "")

		k.set(func() { k.alone = true })
		k.is(t, 10*time.Second, api.GPUParked, "") // no sign has come since
		k.is(t, time.Hour, api.GPUParked, "")
		k.expect(t, 0, api.GPUHeld)
		k.set(func() { k.alone = false })
		k.is(t, 2*time.Second, api.GPUParked, "")
		k.set(func() { k.alone = true })
		k.expect(t, 15*time.Second, api.GPUParked) // 20 times what its save and restore take have not passed
		k.is(t, 15*time.Second, api.GPUHeld, "")
	})
}

// A kernel whose cell came keeps the GPU that it has taken ahead, as after any cell. So does one whose GPU computes.
func TestParker_AheadUsed(t *testing.T) {
	for name, use := range map[string]func(*kernel){
		"a cell": func(k *kernel) {
			k.use.Await("1", "execute_request")
			k.use.Done("1", "execute_request")
		},
		"the GPU": func(k *kernel) { k.use.GPUs.Devices[0].BusySince = api.Timestamp(time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := beginParked(t)
				k.expect(t, 5*time.Second, api.GPUHeld)
				k.set(func() { use(k) })
				k.is(t, 2*time.Second, api.GPUHeld, "")
				k.set(func() { k.use.GPUs.Devices[0].BusySince = "" })
				k.is(t, time.Hour, api.GPUHeld, "")
			})
		})
	}
}
