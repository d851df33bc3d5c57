//go:build linux && cgo

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// maxCommand bounds a line of the standard input, in bytes.
const maxCommand = 4096

// commands carries out what the standard input asks for, one command for each process at a time.
type commands struct {
	do  func(gpu.Command) gpu.Answer
	out io.Writer // may be used by several goroutines

	mu      sync.Mutex
	busy    map[int]bool // process ids and sessions
	closed  bool         // no command begins any more
	running sync.WaitGroup
}

// wait returns when the commands that have begun have ended. No other begins.
func (c *commands) wait() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}

// follow reads commands until the reader of the answers has ended: then in ends. gone is closed then. If the driver
// holds a call of NVML for longer than patience after that, exit ends this program. Commands that have begun are not
// given up: they would leave a process between two states.
func (c *commands) follow(in io.Reader, patience time.Duration, exit func(int)) (gone <-chan struct{}) {
	ended := make(chan struct{})
	go func() { // it ends with the program
		for lines := bufio.NewReaderSize(in, maxCommand); ; {
			line, tooLong, err := lines.ReadLine()
			if err != nil { // any end is the end
				break
			}
			c.begin(line)
			for tooLong && err == nil {
				_, tooLong, err = lines.ReadLine()
			}
		}
		close(ended)
		c.wait()
		time.Sleep(patience)
		exit(1)
	}()
	return ended
}

// begin starts a command.
func (c *commands) begin(line []byte) {
	command, err := gpu.ParseCommand(line)
	if err != nil {
		c.answer(gpu.Answer{ID: command.ID, State: gpu.CUDAUnknown, Failure: &gpu.CUDAError{Text: err.Error()}})
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	subject := max(command.PID, command.Session)
	if c.busy[subject] {
		c.answer(gpu.Answer{ID: command.ID, State: gpu.CUDAUnknown,
			Failure: &gpu.CUDAError{Text: "another command for this process still runs"}})
		return
	}
	if c.busy == nil {
		c.busy = map[int]bool{}
	}
	c.busy[subject] = true
	c.running.Go(func() {
		a := c.do(command)
		c.mu.Lock()
		delete(c.busy, subject) // before the answer, or the next command could come too early
		c.mu.Unlock()
		c.answer(a)
	})
}

// answer prints a line. Without a reader it is lost, and the program ends soon.
func (c *commands) answer(a gpu.Answer) { _ = json.NewEncoder(c.out).Encode(a) }

// shared is a writer for several goroutines: each line comes whole.
type shared struct {
	mu sync.Mutex
	to io.Writer
}

// Write writes one line.
func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(b)
}
