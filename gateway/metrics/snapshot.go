package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Source is what a gateway knows at the time of a scrape. Its functions return at once and may be called concurrently.
type Source struct {
	Measure    func() launcher.Measures         // what the launcher knows
	Websockets func() (open int, in, out int64) // open ones, and bytes from and to clients since the start
	LogReaders func() (open int)                // requests that read a kernel's log
	Lobby      func() (held int64)              // websockets of kernels without a supervisor
	Ready      func() bool                      // whether /readyz succeeds
	Jobs       func() (states map[string]int)   // jobs that have not ended, by state; nil if they are not known
}

// Watch adds the values that are read from a gateway at each scrape. A Metrics belongs to one gateway: a second call is
// an error.
func (m *Metrics) Watch(from Source) error { return m.registry.Register(newSnapshot(m, from)) }

// snapshot collects the values that are read at each scrape.
type snapshot struct {
	m     *Metrics
	from  Source
	descs map[string]*prometheus.Desc
}

func newSnapshot(m *Metrics, from Source) *snapshot {
	s := &snapshot{m: m, from: from, descs: map[string]*prometheus.Desc{}}
	for _, d := range atScrape {
		s.descs[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
	return s
}

// Describe sends the descriptions of the metrics.
func (s *snapshot) Describe(to chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		to <- d
	}
}

// Collect sends the present values.
func (s *snapshot) Collect(to chan<- prometheus.Metric) {
	send := func(m Metric, v float64, labels ...string) {
		kind := prometheus.GaugeValue
		if m.Type == "counter" {
			kind = prometheus.CounterValue
		}
		to <- prometheus.MustNewConstMetric(s.descs[m.Name], kind, v, labels...)
	}
	s.collectKernels(send, func(m Metric, d *api.Durations) {
		buckets, count := map[float64]uint64{}, uint64(0)
		for i, n := range d.Buckets {
			count += uint64(n)
			if i < len(api.DurationBounds) {
				buckets[api.DurationBounds[i]] = count
			}
		}
		to <- prometheus.MustNewConstHistogram(s.descs[m.Name], count, d.Sum.Seconds(), buckets)
	})
	open, in, out := s.from.Websockets()
	send(metricWebsockets, float64(open))
	send(metricWSBytes, float64(in), fromClient)
	send(metricWSBytes, float64(out), toClient)
	send(metricLogReaders, float64(s.from.LogReaders()))
	send(metricLobby, float64(s.from.Lobby()))
	for state, n := range s.from.Jobs() {
		send(metricJobs, float64(n), state)
	}
	ready := 0.0
	if s.from.Ready() {
		ready = 1
	}
	send(metricReady, ready)
}

// shownStates lists the states with a label of their own.
var shownStates = []api.State{api.Starting, api.Idle, api.Busy, api.Restarting, api.Dead, api.Unknown}

// cullLimits lists the limits with a label of their own.
var cullLimits = []string{api.LimitIdle, api.LimitBusy, api.LimitAge}

// sender sends the value of a metric.
type sender func(m Metric, v float64, labels ...string)

// collectKernels sends what the launcher knows.
func (s *snapshot) collectKernels(send sender, sendAll func(Metric, *api.Durations)) {
	now := s.from.Measure()
	s.collectStates(now.Kernels, send)
	collectParked(now.Kernels, send)
	sendAll(metricParkWait, &now.Wakes.Waits)
	sendAll(metricParkRestore, &now.Wakes.Restores)
	send(metricLogEvicted, float64(now.LogEvicted))
	send(metricLogLost, float64(now.LogLost))
	send(metricFailed, float64(now.Failed))
	for _, t := range now.Traffic {
		direction := fromKernel
		if t.ToKernel {
			direction = toKernel
		}
		send(metricMessages, float64(t.Messages), t.Channel, direction)
		send(metricMsgBytes, float64(t.Bytes), t.Channel, direction)
	}
	s.collectCulls(now.Culls, send)
	s.collectWarm(now, send)
	for key, n := range now.Keys {
		send(metricKeys, float64(n), key)
	}
	labelled := func(all map[launcher.GPULabels]float64) map[launcher.GPULabels]float64 {
		sums := map[launcher.GPULabels]float64{}
		for of, v := range all {
			sums[launcher.GPULabels{SpecName: s.m.specs.of(of.SpecName), Flavor: s.m.flavorLabel(of.Flavor)}] += v
		}
		return sums
	}
	gpus, seconds := labelled(now.GPUs), labelled(now.GPUSeconds)
	for of := range seconds {
		gpus[of] += 0 // what had GPUs once keeps its gauge
	}
	for of, n := range gpus {
		send(metricGPUs, n, of.SpecName, of.Flavor)
	}
	for of, v := range seconds {
		send(metricGPUSeconds, v, of.SpecName, of.Flavor)
	}
	for of, v := range labelled(now.GPUBusy) {
		send(metricGPUBusy, v, of.SpecName, of.Flavor)
	}
}

// labelledState is a kernelspec or group, by its label, with a state.
type labelledState struct {
	label string
	state api.State
}

// collectStates sends the numbers of kernels. A kernelspec that ever had a kernel has all states.
func (s *snapshot) collectStates(kernels []launcher.Kernel, send sender) {
	specs, groups := map[labelledState]int{}, map[labelledState]int{}
	var stale, clients, logBytes float64
	for _, k := range kernels {
		state := api.StateOf(k.State)
		specs[labelledState{s.m.specs.of(k.SpecName), state}]++
		for _, group := range k.Groups {
			groups[labelledState{s.m.groups.of(group), state}]++
		}
		if k.Stale {
			stale++
		}
		clients += float64(k.Connections)
		logBytes += float64(k.LogBytes)
	}
	for _, by := range []struct {
		metric Metric
		labels *labelValues
		counts map[labelledState]int
	}{{metricKernels, &s.m.specs, specs}, {metricGroups, &s.m.groups, groups}} {
		for _, label := range append(by.labels.all(), Other) {
			for _, state := range shownStates {
				if n := by.counts[labelledState{label, state}]; n > 0 || label != Other {
					send(by.metric, float64(n), label, string(state))
				}
			}
		}
	}
	send(metricStale, stale)
	send(metricClients, clients)
	send(metricLogBytes, logBytes)
}

// collectParked sends the numbers of kernels that may be parked. What a supervisor of a later version says is "other".
func collectParked(kernels []launcher.Kernel, send sender) {
	states, causes := map[api.ParkState]int{}, map[api.ParkCause]int{}
	for _, k := range kernels {
		states[k.Parked.State]++
		if k.Parked.State == api.GPUFailed {
			if cause := k.Parked.Cause; slices.Contains(api.ParkCauses, cause) {
				causes[cause]++
			} else {
				causes[Other]++
			}
		}
	}
	for _, state := range api.ParkStates {
		send(metricParkable, float64(states[state]), string(state))
	}
	for _, cause := range append(slices.Clip(api.ParkCauses), Other) {
		send(metricUnparkable, float64(causes[cause]), string(cause))
	}
}

// collectWarm sends the numbers of warm kernels.
func (s *snapshot) collectWarm(now launcher.Measures, send sender) {
	waiting, wanted, claims := map[string]float64{}, map[string]float64{}, map[launcher.WarmClaim]float64{}
	for spec, c := range now.Warm {
		spec = s.m.specs.of(spec)
		waiting[spec] += float64(c.Waiting)
		wanted[spec] += float64(c.Wanted)
	}
	for spec := range wanted {
		send(metricWarm, waiting[spec], spec)
		send(metricWarmWanted, wanted[spec], spec)
	}
	for of, n := range now.WarmClaims {
		claims[launcher.WarmClaim{SpecName: s.m.specs.of(of.SpecName), Result: of.Result}] += float64(n)
	}
	for of, n := range claims {
		send(metricWarmClaims, n, of.SpecName, of.Result)
	}
	gaveWay := map[string]float64{}
	for spec := range waiting {
		gaveWay[spec] = 0 // so that the first one is an increase
	}
	for spec, n := range now.WarmGaveWay {
		gaveWay[s.m.specs.of(spec)] += float64(n)
	}
	for spec, n := range gaveWay {
		send(metricWarmGaveWay, n, spec)
	}
}

// collectCulls sends the numbers of culled kernels. All limits of a kernelspec begin with 0, so that the first culled
// kernel is an increase.
func (s *snapshot) collectCulls(culls map[launcher.CullLabels]int64, send sender) {
	type series struct{ spec, limit string }
	culled := map[series]float64{}
	for _, spec := range s.m.specs.all() {
		for _, limit := range cullLimits {
			culled[series{spec, limit}] = 0
		}
	}
	for c, n := range culls {
		limit := c.Limit
		if !slices.Contains(cullLimits, limit) {
			limit = Other
		}
		culled[series{s.m.specs.of(c.SpecName), limit}] += float64(n)
	}
	for c, n := range culled {
		send(metricCulls, n, c.spec, c.limit)
	}
}
