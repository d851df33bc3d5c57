package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of a time of a schedule.
const (
	jobMade    = "made"
	jobLeftOut = "left_out"
)

// jobCounts are the counters of jobs.
type jobCounts struct {
	ended *prometheus.CounterVec
	wait  *prometheus.HistogramVec
	run   *prometheus.HistogramVec
	due   *prometheus.CounterVec
	gave  *prometheus.CounterVec
}

// newJobCounts makes counters whose series begin with 0, so that the first job is an increase.
func newJobCounts() jobCounts {
	c := jobCounts{ended: counter(metricJobsEnded), wait: histogram(metricJobWait, gpuWaitBuckets),
		run: histogram(metricJobRun, jobRunBuckets), due: counter(metricJobsDue),
		gave: counter(metricJobsGaveWay)}
	for _, outcome := range []string{"succeeded", "failed", "stopped"} {
		c.ended.WithLabelValues(outcome)
		c.run.WithLabelValues(outcome)
	}
	c.wait.WithLabelValues("")
	c.gave.WithLabelValues()
	c.due.WithLabelValues(jobMade)
	c.due.WithLabelValues(jobLeftOut)
	return c
}

// JobBegan records how long a job has waited since its submission. The flavor is "" for none.
func (m *Metrics) JobBegan(flavor string, waited time.Duration) {
	m.jobs.wait.WithLabelValues(m.flavorLabel(flavor)).Observe(max(0, waited).Seconds())
}

// JobEnded counts a job that has ended in a state, and records how long its last attempt ran. 0 is not recorded.
func (m *Metrics) JobEnded(state string, ran time.Duration) {
	m.jobs.ended.WithLabelValues(state).Inc()
	if ran > 0 {
		m.jobs.run.WithLabelValues(state).Observe(ran.Seconds())
	}
}

// JobDue counts a time of a schedule, for which a job was made or not.
func (m *Metrics) JobDue(made bool) {
	result := jobLeftOut
	if made {
		result = jobMade
	}
	m.jobs.due.WithLabelValues(result).Inc()
}

// JobGaveWay counts a job that is ended for a kernel that waits for a GPU.
func (m *Metrics) JobGaveWay() { m.jobs.gave.WithLabelValues().Inc() }
