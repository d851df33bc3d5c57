package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// parameterFlags take a name and a value as two arguments, as papermill's do, or as NAME=VALUE.
var parameterFlags = map[string]bool{"-p": true, "--parameters": true, "-r": true, "--parameters_raw": true,
	"--parameters-raw": true}

// parameterPairs joins name and value behind a flag of parameters in the arguments of `ekg run`.
func parameterPairs(args []string) []string {
	if len(args) < 2 || args[1] != "run" {
		return args
	}
	var joined []string
	for i := 0; i < len(args); i++ {
		joined = append(joined, args[i])
		if args[i] == "--" {
			return append(joined, args[i+1:]...)
		}
		if !parameterFlags[args[i]] || i+1 >= len(args) {
			continue
		}
		i++
		pair := args[i]
		if !strings.Contains(pair, "=") && i+1 < len(args) {
			i++
			pair += "=" + args[i]
		}
		joined = append(joined, pair)
	}
	return joined
}

// runCommand is `ekg run`.
func runCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "submit a notebook as a job, and print its id", ArgsUsage: "NOTEBOOK",
		Description: "The job runs in a kernel of its own, and goes on when this command has ended. With --follow or\n" +
			"--output the command waits for the end of the job. Its exit status is then 1 if the job fails, and\n" +
			"Ctrl-C ends only the command. See docs/jobs.md.",

		Flags: slices.Concat([]cli.Flag{
			&cli.StringSliceFlag{Name: "parameters", Aliases: []string{"p"},
				Usage: "a parameter, `NAME VALUE` or NAME=VALUE. Numbers, True, False and None keep their type. Can be repeated"},
			&cli.StringSliceFlag{Name: "parameters-raw", Aliases: []string{"r", "parameters_raw"},
				Usage: "a parameter whose value is a string, `NAME VALUE` or NAME=VALUE. Can be repeated"},
			&cli.StringSliceFlag{Name: "parameters-yaml", Aliases: []string{"y", "parameters_yaml"},
				Usage: "parameters as a `TEXT` in YAML. Can be repeated"},
			&cli.StringSliceFlag{Name: "parameters-file", Aliases: []string{"f", "parameters_file"},
				Usage: "a `FILE` of parameters, YAML or JSON. Can be repeated"},
			&cli.StringFlag{Name: "kernel", Aliases: []string{"k"},
				Usage: "`KERNELSPEC`; default: the notebook's, else the gateway's"},
			&cli.StringFlag{Name: "cwd", Usage: "`FOLDER` in which the kernel runs, if it sees it; default: the notebook's"},
			&cli.StringFlag{Name: "in-kernel", Usage: "run in your running kernel with this `ID`, or the beginning of one"},
			&cli.StringFlag{Name: "from-cell",
				Usage: "with --in-kernel: first `CELL` to run, by its number from 1 or by its id"},
			&cli.StringFlag{Name: "then",
				Usage: "with --in-kernel: `WHAT` happens to the kernel after the job: keep (the default) or end"},
		}, startFlags(), []cli.Flag{
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the job; default: the notebook's"},
			&cli.StringSliceFlag{Name: "tag", Usage: "a `WORD` that lists of jobs show. Can be repeated"},
			&cli.IntFlag{Name: "priority", Usage: "your jobs with a higher `NUMBER` start first"},
			&cli.IntFlag{Name: "retries", Usage: "how often (`NUMBER`) the job begins again if its kernel is lost"},
			&cli.StringFlag{Name: "restart-from",
				Usage: "with --retries: `CELL` at which a retry begins if the job had reached it, by its number from 1 or by its " +
					"id; else a retry begins at the first"},
			&cli.DurationFlag{Name: "timeout", Usage: "how `LONG` the job may run"},
			&cli.BoolFlag{Name: "allow-errors", Usage: "run the next cells after a cell has failed"},
			&cli.StringFlag{Name: "once", Usage: "a `TEXT` that identifies this submission: a repetition returns the same job"},
			&cli.StringFlag{Name: "schedule",
				Usage: "a cron `EXPRESSION` such as '0 6 * * *': store a job definition that submits the job " +
					"at these times, and print the definition's id"},
			&cli.StringFlag{Name: "timezone", Usage: "time `ZONE` of the schedule, such as Europe/Berlin; default: UTC"},
			&cli.BoolFlag{Name: "follow", Usage: "wait for the end of the job and show its progress"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"},
				Usage: "wait for the end of the job and write its notebook to `FILE`"},
		}, gatewayFlags()),
		Action: func(c *cli.Context) error { return onKernels(c, 1, 1, submitNotebook) },
	}
}

// submitNotebook is `ekg run`.
func submitNotebook(ctx context.Context, r *kernelRun) error {
	path := r.c.Args().First()
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if text = jupyter.HideNaN(text); !json.Valid(text) {
		return fmt.Errorf("%s is not a notebook: it is not JSON", path)
	}
	parameters, err := r.parameters()
	if err != nil {
		return err
	}
	env, err := variables(r.c.StringSlice("env"))
	if err != nil {
		return err
	}
	folder, err := r.folder(path, env)
	if err != nil {
		return err
	}
	body := map[string]any{
		"notebook": json.RawMessage(text), "name": r.c.String("name"), "kernelspec": r.c.String("kernel"),
		"parameters": parameters, "env": env, "tags": r.c.StringSlice("tag"), "priority": r.c.Int("priority"),
		"retries": r.c.Int("retries"), "timeout": int64(math.Ceil(r.c.Duration("timeout").Seconds())),
		"allow_errors": r.c.Bool("allow-errors"), "token": r.c.String("once"), "input_path": filepath.Base(path),
	}
	for member, flag := range map[string]string{"flavor": "flavor", "restart_from": "restart-from"} {
		if value := r.c.String(flag); value != "" {
			body[member] = value
		}
	}
	if r.c.IsSet("schedule") || r.c.IsSet("timezone") {
		return r.scheduleNotebook(ctx, body, folder)
	}
	g := r.gateways[0]
	if g, err = r.goOn(ctx, g, body); err != nil {
		return err
	}
	output := r.c.String("output")
	if output != "" {
		body["output_path"] = filepath.Base(output)
	}
	var job jobRow
	if err := g.change(ctx, http.MethodPost, "api/jobs", body, &job); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(r.c.App.Writer, job.ID); err != nil {
		return err
	}
	if err := r.noteFolder(folder, job.WorkingDir); err != nil {
		return err
	}
	if output == "" && !r.c.Bool("follow") {
		return nil
	}
	ended := r.followJob(ctx, g, job.ID)
	if output == "" || errors.Is(ended, errInterrupted) {
		return ended
	}
	return errors.Join(ended, g.saveNotebook(context.WithoutCancel(ctx), job.ID, nil, output))
}

// scheduleNotebook stores a definition instead of submitting a job.
func (r *kernelRun) scheduleNotebook(ctx context.Context, body map[string]any, folder string) error {
	if r.c.String("schedule") == "" {
		return &UsageError{errors.New("--timezone needs --schedule")}
	}
	if r.c.Bool("follow") || r.c.String("output") != "" {
		return &UsageError{errors.New("--schedule runs nothing now: leave out --follow and --output")}
	}
	if r.c.IsSet("in-kernel") {
		return &UsageError{errors.New("--schedule starts new kernels: leave out --in-kernel")}
	}
	body["schedule"], body["timezone"] = r.c.String("schedule"), r.c.String("timezone")
	var definition definitionRow
	if err := r.gateways[0].change(ctx, http.MethodPost, "api/jobs/definitions", body, &definition); err != nil {
		return err
	}
	_, err := fmt.Fprintln(r.c.App.Writer, definition.ID)
	return errors.Join(err, r.noteFolder(folder, definition.WorkingDir))
}

// folder adds to the kernel's variables the folder in which it runs, and returns it. It adds nothing and returns "" if
// the user has set the variable, or the kernel runs already.
func (r *kernelRun) folder(notebook string, env map[string]string) (string, error) {
	const variable = "KERNEL_WORKING_DIR"
	chosen := r.c.String("cwd")
	if r.c.IsSet("in-kernel") {
		if chosen != "" {
			return "", &UsageError{errors.New("--in-kernel has a folder already: leave out --cwd")}
		}
		return "", nil
	}
	if env[variable] != "" && chosen == "" {
		return "", nil
	}
	folder, err := filepath.Abs(cmp.Or(chosen, filepath.Dir(notebook)))
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(folder); err != nil {
		return "", err
	} else if !info.IsDir() {
		return "", fmt.Errorf("--cwd: %s is not a folder", folder)
	}
	if id := folderID(folder); id != "" {
		env[variable], env[variable+"_ID"] = folder, id
	}
	return folder, nil
}

// noteFolder says that the kernel does not see a folder, unless the gateway has found it.
func (r *kernelRun) noteFolder(folder, found string) error {
	if folder == "" || found != "" {
		return nil
	}
	_, err := fmt.Fprintf(r.c.App.ErrWriter, "ekg: the kernel does not see the folder %s, and runs in another one\n",
		folder)
	return err
}

// goOn adds to a submission the running kernel in which it goes on, and returns the gateway of that kernel. Without
// one it returns the gateway that it gets.
func (r *kernelRun) goOn(ctx context.Context, g *gatewayClient, body map[string]any) (*gatewayClient, error) {
	kernel := r.c.String("in-kernel")
	if kernel == "" {
		for _, flag := range []string{"from-cell", "then"} {
			if r.c.IsSet(flag) {
				return nil, &UsageError{fmt.Errorf("--%s needs --in-kernel", flag)}
			}
		}
		return g, nil
	}
	g, id, err := locate(ctx, r.gateways, kernel)
	if err != nil {
		return nil, err
	}
	body["kernel"], body["then"] = id, r.c.String("then")
	if from := r.c.String("from-cell"); from != "" {
		body["from_cell"] = from
	}
	return g, nil
}

// parameters returns the parameters of the command line as papermill reads them: files, texts of YAML, typed values and
// raw values. Later ones override earlier ones.
func (r *kernelRun) parameters() (*values, error) {
	all := &values{}
	for _, path := range r.c.StringSlice("parameters-file") {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := all.readYAML(text); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, text := range r.c.StringSlice("parameters-yaml") {
		if err := all.readYAML([]byte(text)); err != nil {
			return nil, &UsageError{fmt.Errorf("--parameters-yaml: %w", err)}
		}
	}
	for _, kind := range []struct {
		flag  string
		value func(string) (json.RawMessage, error)
	}{
		{"parameters", typed}, {"parameters-raw", func(text string) (json.RawMessage, error) { return quoted(text), nil }},
	} {
		for _, pair := range r.c.StringSlice(kind.flag) {
			name, text, ok := strings.Cut(pair, "=")
			if !ok || name == "" {
				return nil, &UsageError{fmt.Errorf("--%s %q has no name and value", kind.flag, pair)}
			}
			raw, err := kind.value(text)
			if err != nil {
				return nil, &UsageError{fmt.Errorf("--%s %s: %w", kind.flag, name, err)}
			}
			all.set(name, raw)
		}
	}
	return all, nil
}

// variables reads NAME=VALUE.
func variables(texts []string) (map[string]string, error) {
	env := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, &UsageError{fmt.Errorf("--env %q is not NAME=VALUE", text)}
		}
		env[name] = value
	}
	return env, nil
}

// errInterrupted says that the user has ended a command that waited for a job.
var errInterrupted = errors.New("interrupted")

const (
	// followWait is for how many seconds a gateway waits for a change of a job before it answers.
	followWait = 30
	// followPause is the time between two looks at a job if a gateway does not wait or does not answer.
	followPause = time.Second
)

// followJob waits for the end of a job, and shows on stderr what it does. The error says how the job has failed. A
// gateway that does not answer is asked again: another one may have the job, or this one is being replaced.
func (r *kernelRun) followJob(ctx context.Context, g *gatewayClient, id string) error {
	p := newProgress(r.c.App.ErrWriter)
	version := ""
	for {
		var job jobRow
		asked := time.Now()
		path := fmt.Sprintf("api/jobs/%s?wait=%d&after=%s", id, followWait, url.QueryEscape(version))
		err := g.change(ctx, http.MethodGet, path, nil, &job)
		var refused *refusedError
		switch {
		case ctx.Err() != nil:
			p.end()
			return fmt.Errorf("%w; the job goes on. To come back: ekg jobs follow %s", errInterrupted, id)
		case errors.As(err, &refused) && refused.final():
			p.end()
			return err
		case err != nil:
			p.say("the gateway does not answer")
		case job.ended():
			p.show(job)
			p.end()
			return job.failure()
		default:
			p.show(job)
			if version != job.Version || time.Since(asked) >= followPause {
				if version = job.Version; version != "" {
					continue // the gateway answers when there is something new
				}
			}
		}
		if err := goroutines.Sleep(ctx, followPause); err != nil {
			continue // ctx says it
		}
	}
}
