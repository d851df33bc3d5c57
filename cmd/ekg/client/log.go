package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

const (
	logHeader  = "Ekg-Log"        // names the log in the answer; see docs/log.md
	logQuiet   = 45 * time.Second // longest time without a line; an empty one comes every 15 s
	maxLogLine = 2 << 30          // bytes: holds a message of 512 MiB with its buffers in base64
)

// Pauses before a new connection. They double.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
)

// logCommand is `ekg log`.
func logCommand() *cli.Command {
	return &cli.Command{
		Name: "log", Usage: "print a kernel's output", ArgsUsage: "KERNEL",
		Description: "KERNEL is a kernel's id or the beginning of one. Its output is printed: text as it is, errors\n" +
			"as their traceback, everything else as one line.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "cell", Usage: "only the output of the request with this `MSG_ID`"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"},
				Usage: "continue with new output until the kernel ends or Ctrl-C"},
			&cli.Uint64Flag{Name: "after", Usage: "only the lines after line `NUMBER`; --json shows the numbers"},
			&cli.BoolFlag{Name: "json", Usage: "print the log's lines as they are, one JSON object each"},
		}, gatewayFlags()...),
		BashComplete: completeKernels,
		Action: func(c *cli.Context) error {
			if err := Arguments(c, 1); err != nil {
				return err
			}
			if c.Args().First() == "" {
				return &UsageError{errors.New("KERNEL is empty")}
			}
			at, err := readAccess(c)
			if err != nil {
				return err
			}
			return newLogReader(c, at).run(c.Context)
		},
	}
}

// logReader is one run of `ekg log`.
type logReader struct {
	// Fixed.
	kernel  string
	query   url.Values
	follow  bool
	asJSON  bool
	find    func() ([]*gatewayClient, error)
	out     *bufio.Writer
	printer *logPrinter
	stderr  io.Writer
	quiet   time.Duration // logQuiet, except in tests

	// Owned by run.
	after uint64 // number of the last line that was printed
	log   string // name of that line's log, or "" if it is not known
	began bool   // an answer has arrived
}

func newLogReader(c *cli.Context, at access) *logReader {
	out := bufio.NewWriterSize(c.App.Writer, 64<<10)
	query := url.Values{}
	if cell := c.String("cell"); cell != "" {
		query.Set("parent", cell)
	}
	follow := c.Bool("follow")
	if follow {
		query.Set("follow", "true")
	}
	return &logReader{
		kernel:  c.Args().First(),
		query:   query,
		follow:  follow,
		asJSON:  c.Bool("json"),
		after:   c.Uint64("after"),
		find:    at.gateways,
		out:     out,
		stderr:  c.App.ErrWriter,
		quiet:   logQuiet,
		printer: &logPrinter{out: out},
	}
}

// run prints the log. After a broken connection it continues behind the last line. With follow it always does. Without
// follow it does so only if the last attempt printed something: a gateway ends the answer to a reader that pauses for a
// minute, as a pager does. With follow an interrupt is not an error.
func (l *logReader) run(ctx context.Context) error {
	wait, broken := firstPause, false
	for {
		before := l.after
		err := l.once(ctx, func() {
			if broken {
				l.say("connected again")
			}
			wait, broken = firstPause, false
		})
		if ferr := l.out.Flush(); err == nil {
			err = ferr
		}
		var output *outputError
		var refused *refusedError
		switch {
		case ctx.Err() != nil && l.follow, err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case l.log != "" && errors.As(err, &refused) && refused.status == http.StatusConflict:
			l.say("the kernel was started again by another supervisor; this is its new log")
			l.after, l.log = 0, ""
			continue
		case !l.follow && l.after == before, !l.began, errors.As(err, &output), errors.As(err, &refused) && refused.final():
			return err
		}
		if !broken {
			broken = true
			l.say("the connection broke, connecting again: " + err.Error())
		}
		if err := goroutines.Sleep(ctx, wait); err != nil {
			return nil
		}
		wait = min(2*wait, lastPause)
	}
}

// say prints a message of this command on stderr.
func (l *logReader) say(text string) {
	_ = l.out.Flush() // the next write returns the error
	_, _ = fmt.Fprintln(l.stderr, "ekg: "+text)
}

// outputError is a failure to write to standard output.
type outputError struct{ err error }

func (e *outputError) Error() string { return "standard output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// once finds the kernel and prints its log from the end of the last call until the answer ends. It calls connected when
// the answer begins.
func (l *logReader) once(ctx context.Context, connected func()) error {
	gateways, err := l.find()
	if err != nil {
		return err
	}
	defer func() {
		for _, g := range gateways {
			g.close()
		}
	}()
	g, id, err := locate(ctx, gateways, l.kernel)
	if err != nil {
		return err
	}
	l.kernel = id // the beginning of an id may later match two kernels
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.query.Set("after", strconv.FormatUint(l.after, 10))
	if l.log != "" {
		l.query.Set("log", l.log)
	} else {
		l.query.Del("log")
	}
	resp, err := g.get(ctx, "api/kernels/"+id+"/log", l.query)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end, or broken
	l.began, l.log = true, resp.Header.Get(logHeader)
	connected()
	silent := time.AfterFunc(l.quiet, func() { cancel(fmt.Errorf("no data arrived for %v", l.quiet)) })
	defer silent.Stop()
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		silent.Reset(l.quiet)
		line, err := readLogLine(in)
		silent.Stop()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("%s: %w", g.shown, context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("%s: %w", g.shown, err)
		}
		if err := l.print(line); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			if err := l.out.Flush(); err != nil {
				return &outputError{err}
			}
		}
	}
}

// readLogLine reads up to the next newline. The slice is valid until the next call.
func readLogLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if err == nil {
		return line, nil
	}
	long := slices.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(long) > maxLogLine {
			return nil, fmt.Errorf("a line of more than %d bytes", maxLogLine)
		}
		line, err = in.ReadSlice('\n')
		long = append(long, line...)
	}
	if errors.Is(err, io.EOF) && len(long) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return long, err
}

// print prints one line of the log.
func (l *logReader) print(line []byte) error {
	if len(strings.TrimSpace(string(line[:min(len(line), 2)]))) == 0 {
		return nil // a keep-alive
	}
	var m logMessage
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("a line of the log is not a JSON object: %w", err)
	}
	switch {
	case l.asJSON:
		if _, err := l.out.Write(line); err != nil {
			return &outputError{err}
		}
	case m.Lost > 0:
		l.say(fmt.Sprintf("%d messages up to number %d are no longer kept", m.Lost, m.Number))
	default:
		if err := l.printer.print(&m); err != nil {
			return &outputError{err}
		}
	}
	l.after = m.Number
	return nil
}
