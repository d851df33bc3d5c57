package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// jobsCommand is `ekg jobs`.
func jobsCommand() *cli.Command {
	all := func(what string) cli.ActionFunc {
		do := map[string]func(context.Context, *kernelRun, *gatewayClient, string) error{
			"follow": followOne, "logs": printJobLogs, "notebook": printNotebook,
			"stop": stopJob, "rm": removeJob,
		}[what]
		most := -1
		if what == "notebook" {
			most = 1
		}
		return func(c *cli.Context) error { return onKernels(c, 1, most, jobList.each(do)) }
	}
	command := &cli.Command{
		Name: "jobs", Usage: "list, follow and stop jobs",
		Flags:  []cli.Flag{outputFlag},
		Action: func(c *cli.Context) error { return onKernels(c, 0, 0, listJobs) },
		Subcommands: []*cli.Command{
			{Name: "follow", Usage: "wait for the end of jobs and show their progress", ArgsUsage: "JOB..."},
			{Name: "logs", Usage: "print the output of the cells of jobs", ArgsUsage: "JOB..."},
			{Name: "notebook", Usage: "print the notebook of a job with its outputs", ArgsUsage: "JOB",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write it to `FILE`"},
					&cli.BoolFlag{Name: "source", Usage: "print the notebook as it was submitted"},
				}},
			{Name: "stop", Usage: "stop jobs, and end their kernels", ArgsUsage: "JOB..."},
			{Name: "rm", Usage: "remove jobs that have ended, with their notebooks", ArgsUsage: "JOB..."},
		},
	}
	for _, sub := range command.Subcommands {
		sub.Action = all(sub.Name)
		sub.Description = "JOB is a job's id or the beginning of one."
	}
	giveGatewayFlags(command)
	command.Subcommands = append(command.Subcommands, definitionsCommand())
	return command
}

var jobList = listing[jobRow]{"api/jobs", "job", "ekg jobs"}

// jobRow is a job as the gateway shows it, as much of it as tables show.
type jobRow struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Kernelspec string    `json:"kernelspec"`
	Flavor     string    `json:"flavor"`
	Owner      string    `json:"owner"`
	State      string    `json:"state"`
	Reason     string    `json:"reason"`
	Attempt    int       `json:"attempt"`
	Kernel     string    `json:"kernel_id"`
	Cell       int       `json:"cell"`
	Cells      int       `json:"cells"`
	Created    time.Time `json:"created"`
	GPUSeconds float64   `json:"gpu_seconds"`
	WorkingDir string    `json:"working_dir"`
	Version    string    `json:"version"` // of the job at its gateway; "" if the gateway does not say it

	whole json.RawMessage
}

// UnmarshalJSON reads a job and keeps all of it.
func (j *jobRow) UnmarshalJSON(b []byte) error {
	type fields jobRow // without this method
	*j = jobRow{whole: slices.Clone(b)}
	return json.Unmarshal(b, (*fields)(j))
}

func (j jobRow) id() string             { return j.ID }
func (j jobRow) created() time.Time     { return j.Created }
func (j jobRow) model() json.RawMessage { return j.whole }

// The states of a job that commands tell apart.
const (
	running   = "running"
	succeeded = "succeeded"
)

func (j *jobRow) ended() bool {
	return slices.Contains([]string{succeeded, "failed", "stopped"}, j.State)
}

// failure returns the error of a job that has not succeeded.
func (j *jobRow) failure() error {
	if j.State == succeeded {
		return nil
	}
	return fmt.Errorf("job %s %s: %s", j.ID, j.State, cmp.Or(j.Reason, "no reason is known"))
}

// listJobs is `ekg jobs`.
func listJobs(ctx context.Context, r *kernelRun) error {
	all, _, err := jobList.all(ctx, r)
	if err != nil {
		return err
	}
	return r.format.printJobs(r.c.App.Writer, all, time.Now())
}

func followOne(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	return r.followJob(ctx, g, id)
}

func stopJob(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	return r.changes(ctx, g, http.MethodPost, "api/jobs/"+id+"/stop", nil, id)
}

func removeJob(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	return r.changes(ctx, g, http.MethodDelete, "api/jobs/"+id, nil, id)
}

// notebook reads a job's notebook.
func (g *gatewayClient) notebook(ctx context.Context, id string, query url.Values) ([]byte, error) {
	resp, err := g.get(ctx, "api/jobs/"+id+"/notebook", query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: the notebook: %w", g.shown, err)
	}
	return b, nil
}

// saveNotebook writes a job's notebook to a file.
func (g *gatewayClient) saveNotebook(ctx context.Context, id string, query url.Values, path string) error {
	b, err := g.notebook(ctx, id, query)
	if err != nil {
		return err
	}
	return files.Replace(path, func(f *os.File) error {
		_, err := f.Write(b)
		return errors.Join(err, f.Chmod(0o644)) // as Jupyter's
	})
}

func printNotebook(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	query := url.Values{}
	if r.c.Bool("source") {
		query.Set("source", "1")
	}
	if path := r.c.String("output"); path != "" {
		return g.saveNotebook(ctx, id, query, path)
	}
	b, err := g.notebook(ctx, id, query)
	if err != nil {
		return err
	}
	_, err = r.c.App.Writer.Write(b)
	return err
}

// jobLogs prints the outputs of all cells, as `ekg log` prints a kernel's.
func printJobLogs(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	b, err := g.notebook(ctx, id, nil)
	if err != nil {
		return err
	}
	var doc struct {
		Cells []struct {
			Outputs []map[string]json.RawMessage `json:"outputs"`
		} `json:"cells"`
	}
	if err := json.Unmarshal(jupyter.HideNaN(b), &doc); err != nil {
		return fmt.Errorf("the notebook of job %s: %w", id, err)
	}
	p := logPrinter{out: bufio.NewWriter(r.c.App.Writer)}
	for _, cell := range doc.Cells {
		for _, output := range cell.Outputs {
			if err := p.print(outputMessage(output)); err != nil {
				return err
			}
		}
	}
	return p.out.Flush()
}

// outputMessage turns a notebook's output into the message that it came from. Notebooks have texts as lists of lines.
func outputMessage(output map[string]json.RawMessage) *logMessage {
	var m logMessage
	_ = json.Unmarshal(output["output_type"], &m.Header.MsgType) // an output of another form prints nothing
	var data map[string]json.RawMessage
	if json.Unmarshal(output["data"], &data) == nil && data != nil {
		for name, raw := range data {
			data[name] = joinedLines(raw)
		}
		output["data"], _ = json.Marshal(data) // raw JSON cannot fail
	}
	if raw, there := output["text"]; there {
		output["text"] = joinedLines(raw)
	}
	m.Content, _ = json.Marshal(output)
	return &m
}

// joinedLines returns a list of texts as one text, and any other value as it is.
func joinedLines(raw json.RawMessage) json.RawMessage {
	var lines []string
	if len(raw) == 0 || json.Unmarshal(raw, &lines) != nil {
		return raw
	}
	text, _ := json.Marshal(strings.Join(lines, "")) // a text cannot fail
	return text
}

// printJobs prints a list of jobs.
func (f outputFormat) printJobs(w io.Writer, all []jobRow, now time.Time) error {
	return jobList.print(w, f, all, func() [][]string { return jobLines(all, now, f == formatWide) })
}

func jobLines(all []jobRow, now time.Time, wide bool) [][]string {
	head := []string{"JOB", "NAME", "STATE", "CELLS", "AGE", "REASON"}
	if wide {
		head = []string{"JOB", "NAME", "STATE", "CELLS", "AGE", "OWNER", "SPEC", "FLAVOR", "GPU HOURS", "ATTEMPT", "KERNEL",
			"REASON"}
	}
	lines := [][]string{head}
	for _, j := range all {
		cells := []string{j.ID, j.Name, j.State, fmt.Sprintf("%d/%d", j.Cell, j.Cells), age(now, j.Created)}
		if wide {
			cells = append(cells, cmp.Or(j.Owner, "-"), j.Kernelspec, cmp.Or(j.Flavor, "-"), hours(j.GPUSeconds),
				strconv.Itoa(j.Attempt),
				cmp.Or(j.Kernel, "-"))
		}
		lines = append(lines, append(cells, cmp.Or(j.Reason, "-")))
	}
	return lines
}

// progress shows what a job does: a bar on a terminal, else a line for each change.
type progress struct {
	w        io.Writer
	terminal bool
	said     string
	onLine   bool // the cursor stands behind the bar
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// barWidth is the width of the bar, in characters.
const barWidth = 30

// show shows a job. Errors of writing are ignored: the job does not depend on them.
func (p *progress) show(j jobRow) {
	text := fmt.Sprintf("%s: %s", j.Name, j.State)
	if j.Cells > 0 && (j.State == running || j.ended()) {
		if p.terminal {
			done := barWidth * j.Cell / j.Cells
			text = fmt.Sprintf("%s [%s%s] cell %d of %d, %s", j.Name, strings.Repeat("#", done),
				strings.Repeat("-", barWidth-done), j.Cell, j.Cells, j.State)
		} else {
			text += fmt.Sprintf(", cell %d of %d", j.Cell, j.Cells)
		}
	}
	if j.Reason != "" && !j.ended() {
		text += ": " + j.Reason
	}
	p.say(text)
}

func (p *progress) say(text string) {
	if text == p.said {
		return
	}
	p.said = text
	text = kernelspecs.Printable(text)
	if p.terminal {
		_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s", text)
		p.onLine = true
		return
	}
	_, _ = fmt.Fprintf(p.w, "ekg: %s\n", text)
}

// end ends the bar's line.
func (p *progress) end() {
	if p.onLine {
		_, _ = fmt.Fprintln(p.w)
		p.onLine = false
	}
}
