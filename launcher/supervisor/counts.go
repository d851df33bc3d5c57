package supervisor

import (
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// traffic counts the messages of the kernel and its clients since a time. It may be used concurrently.
type traffic struct {
	toKernel   flows
	fromKernel flows
	lost       atomic.Int64 // messages that clients have missed, by the notices they got
	began      time.Time
}

// read returns the counts. The log's are its caller's.
func (t *traffic) read() api.Counts {
	return api.Counts{Since: t.began, ToKernel: t.toKernel.read(), FromKernel: t.fromKernel.read(),
		LogLost: t.lost.Load()}
}

// flows counts messages and bytes on each channel. It may be used concurrently.
type flows [len(api.Flows{})]struct{ messages, bytes atomic.Int64 }

func (f *flows) add(c jupyter.Channel, bytes int) {
	f[c-jupyter.Shell].messages.Add(1)
	f[c-jupyter.Shell].bytes.Add(int64(bytes))
}

func (f *flows) read() (now api.Flows) {
	for i := range f {
		now[i] = [2]int64{f[i].messages.Load(), f[i].bytes.Load()}
	}
	return now
}
