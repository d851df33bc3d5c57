package supervisor

import (
	"sync/atomic"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

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
