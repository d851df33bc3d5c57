package activity

import (
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Traffic counts the messages of a kernel and its clients since a time. It may be used concurrently.
type Traffic struct {
	ToKernel   Flows
	FromKernel Flows
	Lost       atomic.Int64 // messages that clients have missed, by the notices they got
	Began      time.Time    // fixed
}

// Read returns the counts. The log's are its caller's.
func (t *Traffic) Read() api.Counts {
	return api.Counts{Since: t.Began, ToKernel: t.ToKernel.read(), FromKernel: t.FromKernel.read(),
		LogLost: t.Lost.Load()}
}

// Flows counts messages and bytes on each channel. It may be used concurrently.
type Flows [len(api.Flows{})]struct{ messages, bytes atomic.Int64 }

// Add counts a message of so many bytes on channel c.
func (f *Flows) Add(c jupyter.Channel, bytes int) {
	f[c-jupyter.Shell].messages.Add(1)
	f[c-jupyter.Shell].bytes.Add(int64(bytes))
}

func (f *Flows) read() (now api.Flows) {
	for i := range f {
		now[i] = [2]int64{f[i].messages.Load(), f[i].bytes.Load()}
	}
	return now
}
