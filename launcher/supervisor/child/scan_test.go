package child

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// TestRun_SharesScans: a child publishes its scans of /proc, and uses those of other children.
func TestRun_SharesScans(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "processors.json")
	c := listen(t, filepath.Join(dir, "s"), time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, Options{Socket: filepath.Join(dir, "s"), Scan: proctree.NewScan(path)})
	}()
	connected(t, c)
	p := mustStart(t, c, "sleep", "1000")
	deadline := time.Now().Add(testLimit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()

	// Only GPUs are measured: no scan is made.
	p.Measure(false, process.GPULook{Program: "/nowhere/ekg-gpu", For: time.Millisecond})
	for ; p.Used().GPU.At.IsZero(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the child does not look at GPUs")
		}
	}
	if _, err := os.Stat(path); err == nil || !p.Used().Processor.At.IsZero() {
		t.Errorf("the child has scanned /proc: %v, %v", err, p.Used())
	}

	// The child reports the kernel's memory.
	p.MeasureMemory()
	for ; p.Used().Memory.At.IsZero(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the child does not measure memory")
		}
	}
	if got := p.Used().Memory.Bytes; got < 64<<10 || got > 1<<30 {
		t.Errorf("the kernel has %d bytes", got)
	}

	p.Measure(true, process.GPULook{})
	var file struct {
		View     string                `json:"view"`
		At       time.Duration         `json:"at"`
		Sessions map[int]time.Duration `json:"sessions"`
	}
	for ; file.Sessions == nil; <-tick.C {
		if b, err := os.ReadFile(path); err == nil {
			if err := json.Unmarshal(b, &file); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the child publishes no scan")
		}
	}
	if _, has := file.Sessions[p.PID()]; !has {
		t.Errorf("the scan lacks the kernel: %v", file.Sessions)
	}

	const others = 1000 * time.Hour // processor time that another child has reported
	for p.Used().Processor.Used != others {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
			t.Fatal(err)
		}
		file.At, file.Sessions[p.PID()] = time.Duration(now.Nano()), others
		b, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := files.Write(path, b); err != nil {
			t.Fatal(err)
		}
		p.Measure(true, process.GPULook{})
		<-tick.C
		if time.Now().After(deadline) {
			t.Fatal("the child does not use another one's scan")
		}
	}
	c.Close(nil)
	cancel()
	<-ended
}

// TestContainer_Used: a measurement counts from the moment that it is about.
func TestContainer_Used(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c := listen(t, socket, time.Minute)
	child := runChild(t, socket)
	connected(t, c)
	p := mustStart(t, c, "sleep", "1000")
	for age, want := range map[time.Duration]time.Duration{0: 0, 5 * time.Second: 5 * time.Second, -time.Hour: 0,
		time.Hour: maxAge} {
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		c.take(l, line{Type: lineUsed, Life: p.life, Used: time.Second, Age: age})
		if got := time.Since(p.Used().Processor.At); got < want || got > want+testLimit/10 {
			t.Errorf("with age %v it is %v old", age, got)
		}
	}
	c.Close(nil)
	child.cancel()
	child.exitCode(t)
}
