package gateway

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// schedulerBody is what a client of jupyter-scheduler sends, and the notebook.
const schedulerBody = `{"name":"train","input_uri":"work/train.ipynb","runtime_environment_name":"r","notebook":` +
	`{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]},"compute_type":null,"output_formats":["ipynb"],` +
	`"runtime_environment_parameters":{},"output_filename_template":"x","parameters":{"z":"3","a":"[1,2]","t":"tr\"ue",` +
	`"big":"1e999"},"tags":["night"]`

// schedulerList is an answer of a list.
type schedulerList struct {
	Jobs        []schedulerJob        `json:"jobs"`
	Definitions []schedulerDefinition `json:"job_definitions"`
	Total       int                   `json:"total_count"`
	Next        string                `json:"next_token"`
}

func (l schedulerList) names() string {
	var names []string
	for _, j := range l.Jobs {
		names = append(names, j.Name)
	}
	for _, d := range l.Definitions {
		names = append(names, d.Name)
	}
	return strings.Join(names, " ")
}

// addRecord stores a job as one that a gateway has left.
func (g *userGateway) addRecord(t *testing.T, n int, job string) (id string) {
	t.Helper()
	id = fmt.Sprintf("0a1b2c3d-0000-4000-8000-0000000001%02d", n)
	for kind, data := range map[string]string{"jobs": `{"id":"` + id + `","source":"` + id + `",` + job + `}`,
		"job-notebooks": `{"cells":[]}`} {
		if _, err := g.fake.CreateRecord(t.Context(), launcher.Record{Kind: kind, ID: id, Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

// TestScheduler_List: lists have the caller's jobs as jupyter-scheduler filters, sorts and divides them.
func TestScheduler_List(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addRecord(t, 0, `"owner":"ann","name":"b1","state":"succeeded","created":"2026-01-01T00:00:01.25Z","tags":["x","y"],`+
		`"started":"2026-01-01T00:00:02Z","ended":"2026-01-01T00:00:09Z","kernelspec":"r","definition":"`+idB+`"`)
	g.addRecord(t, 1, `"owner":"ann","name":"a","state":"failed","created":"2026-01-01T00:00:01.5Z","reason":"cell 1: x",`+
		`"started":"2026-01-01T00:00:03Z","ended":"2026-01-01T00:00:04Z","tags":["x"],"input_path":"../../etc/p\u0000w"`)
	g.addRecord(t, 2, `"owner":"ann","name":"b2","state":"running","created":"2026-01-01T00:00:03Z",`+
		`"started":"2026-01-01T00:00:03Z"`)
	g.addRecord(t, 3, `"owner":"ann","name":"c","state":"starting","reason":"no GPU is free","created":`+
		`"2026-01-01T00:00:04Z"`)
	g.addRecord(t, 4, `"owner":"ann","name":"d","state":"running","stopping":true,"created":"2026-01-01T00:00:05Z",`+
		`"started":"2026-01-01T00:00:05Z"`)
	g.addRecord(t, 5, `"owner":"bob","name":"bobs","state":"stopped","created":"2026-01-01T00:00:06Z"`)
	for _, tt := range []struct{ query, names string }{
		{"", "d c (no GPU is free) b2 a b1"},
		{"?name=b", "b2 b1"},
		{"?tags=x", "a b1"},
		{"?tags=x&tags=y", "b1"},
		{"?status=in_progress", "b2"},
		{"?status=STOPPING", "d"},
		{"?status=QUEUED", "c (no GPU is free)"},
		{"?status=COMPLETED&status=x", "b1"},
		{"?status=STOPPED", ""},
		{"?job_definition_id=" + idB, "b1"},
		{"?start_time=1767225603000", "d b2 a"},
		{"?create_time=1767225605000&max_items=2", "d c (no GPU is free)"}, // of definitions
		{"?sort_by=asc(name)", "a b1 b2 c (no GPU is free) d"},
		{"?sort_by=name", "a b1 b2 c (no GPU is free) d"},
		{"?sort_by=DESC(name)", "d c (no GPU is free) b2 b1 a"},
		{"?sort_by=asc(create_time)", "b1 a b2 c (no GPU is free) d"},
		{"?sort_by=desc(start_time)&sort_by=name", "d a b2 b1 c (no GPU is free)"},
		{"?sort_by=desc(end_time)", "b1 a b2 c (no GPU is free) d"},
		{"?sort_by=status&sort_by=desc(name)", "a d b2 c (no GPU is free) b1"},
		{"?max_items=0", ""},
		{"?sort_by=name&max_items=2&next_token=4", "d"},
		{"?max_items=9223372036854775807&next_token=4", "b1"},
		{"?next_token=9223372036854775807", ""},
	} {
		list := decode[schedulerList](t, g.do("GET", "/scheduler/jobs"+tt.query, "", as("ann")).want(t, 200, ""))
		if list.names() != tt.names || list.Jobs == nil {
			t.Errorf("%s: %q, want %q", tt.query, list.names(), tt.names)
		}
	}
	var pages []string
	for token := ""; len(pages) < 9; {
		page := decode[schedulerList](t, g.do("GET", "/scheduler/jobs?sort_by=name&max_items=2&next_token="+token, "",
			as("ann")).want(t, 200, ""))
		pages = append(pages, fmt.Sprint(page.names(), page.Total))
		if token = page.Next; token == "" {
			break
		}
	}
	if want := []string{"a b15", "b2 c (no GPU is free)5", "d5"}; !slices.Equal(pages, want) {
		t.Errorf("pages %q, want %q", pages, want)
	}
	for query, want := range map[string]string{
		"": "1", "?status=failed": "1", "?status=stopping": "1", "?status=stopped": "0",
	} {
		g.do("GET", "/scheduler/jobs/count"+query, "", as("ann")).want(t, 200, `{"count":`+want+`}`)
	}
	list := decode[schedulerList](t, g.do("GET", "/scheduler/jobs?sort_by=name", "", as("root")).want(t, 200, ""))
	if list.Total != 6 {
		t.Errorf("an admin sees %s", list.names())
	}
	a := decode[map[string]any](t, g.do("GET", "/scheduler/jobs/"+list.Jobs[0].ID, "", as("ann")).want(t, 200, ""))
	for member, want := range map[string]any{
		"name": "a", "status": "FAILED", "status_message": "cell 1: x", "create_time": 1767225601500.0,
		"update_time": 1767225601500.0, "start_time": 1767225603000.0, "end_time": 1767225604000.0,
		"input_filename": "pw", "url": "/jobs/" + list.Jobs[0].ID, "downloaded": false, "job_definition_id": nil,
	} {
		if a[member] != want {
			t.Errorf("%s is %v, want %v", member, a[member], want)
		}
	}
	for _, query := range []string{"?status=x", "?start_time=x", "?max_items=-1", "?max_items=x", "?next_token=-1",
		"?next_token=x", "?sort_by=)", "?sort_by=" + strings.Repeat("a&sort_by=", 5) + "a"} {
		for _, of := range []string{"jobs", "job_definitions"} {
			g.do("GET", "/scheduler/"+of+query, "", as("ann")).want(t, 400, "The parameter ")
		}
	}
	g.do("GET", "/scheduler/jobs/count?status=x", "", as("ann")).want(t, 400, "The parameter status")
}

// TestScheduler_Jobs: a job is submitted, stopped and removed by its owner alone, and all of it is audited.
func TestScheduler_Jobs(t *testing.T) {
	audit := &transcript.Buffer{}
	g := startUserGateway(t, func(o *Options) { o.Audit, o.Jobs.PerUser, o.BaseURL = audit, 2, "/gw" })
	submit := func(more string) string {
		t.Helper()
		made := g.do("POST", "/gw/scheduler/jobs", schedulerBody+more+`}`, as("ann")).want(t, 200, "job_id")
		return decode[map[string]string](t, made)["job_id"]
	}
	first := submit(`,"idempotency_token":"once","schedule":"x"`)
	if again := submit(`,"idempotency_token":"once"`); again != first {
		t.Errorf("the token makes %s and %s", first, again)
	}
	second := submit("")
	g.do("POST", "/gw/scheduler/jobs", schedulerBody+`}`, as("ann")).want(t, 403, "You have 2 jobs that have not ended")
	job := g.do("GET", "/gw/api/jobs/"+first, "", as("ann"))
	job.want(t, 200, `"parameters":{"z":3,"a":[1,2],"t":"tr\"ue","big":"1e999"},"tags":["night"],"input_path":"work/train.ipynb"`)
	path := "/gw/scheduler/jobs/" + first
	shown := g.do("GET", path, "", as("ann")).want(t, 200, `"parameters":{"z":"3","a":"[1,2]","t":"tr\"ue","big":"1e999"}`)
	shown.want(t, 200, `"status":"QUEUED"`).want(t, 200, `"input_filename":"train.ipynb"`)
	shown.want(t, 200, `"runtime_environment_name":"r"`).want(t, 200, `"job_files":[{"display_name":"Notebook",`)
	g.do("GET", path+"/download_files?redownload=1", "", as("ann")).want(t, 400, "GET /gw/api/jobs/"+first+"/notebook")

	batch := "/gw" + schedulerBatchPath + "?job_id=" + second + "&job_id=" + first
	for _, hidden := range []struct{ method, path, body string }{
		{"GET", path, ""}, {"PATCH", path, `{"status":"STOPPED"}`}, {"DELETE", path, ""}, {"DELETE", batch, ""},
		{"GET", path + "/download_files", ""}, {"PATCH", path, `{"status":"FAILED"}`},
	} {
		g.do(hidden.method, hidden.path, hidden.body, as("bob")).want(t, 404, noJob)
	}
	g.do("GET", "/gw/scheduler/jobs", "", as("bob")).want(t, 200, `{"jobs":[],"total_count":0}`)
	g.do("DELETE", path, "", as("ann")).want(t, 409, "has not ended")
	g.do("PATCH", path, `{"status":"FAILED"}`, as("ann")).want(t, 400, "A job can only be stopped")
	g.do("PATCH", path, `{"name":"x"}`, as("ann")).want(t, 400, "A job can only be stopped")
	g.do("PATCH", path, `{"status":1}`, as("ann")).want(t, 400, "status is not a string")
	for _, id := range []string{first, second} {
		g.do("PATCH", "/gw/scheduler/jobs/"+id, `{"status":"STOPPED"}`, as("ann")).want(t, 204, "")
		g.do("GET", "/gw/scheduler/jobs/"+id, "", as("ann")).want(t, 200, `"status":"STOPPED"`)
	}
	third := submit("")
	g.do("DELETE", batch+"&job_id="+url.QueryEscape("../x"), "", as("ann")).want(t, 404, noJob)
	g.do("PATCH", "/gw/scheduler/jobs/"+third, `{"status":"STOPPED"}`, as("ann")).want(t, 204, "")
	g.do("DELETE", "/gw/scheduler/jobs/"+third, "", as("ann")).want(t, 204, "")
	g.do("GET", "/gw/scheduler/jobs", "", as("ann")).want(t, 200, `{"jobs":[],"total_count":0}`)
	for _, query := range []string{"", "?job_id=" + strings.Repeat("x&job_id=", schedulerBatch) + "x"} {
		g.do("DELETE", "/gw"+schedulerBatchPath+query, "", as("ann")).want(t, 400, "job_id")
	}
	var removed []string
	poll.Until(t, "all removals are in the audit log, whose entries are written behind the answers", func() bool {
		removed = nil
		for line := range strings.Lines(audit.String()) {
			var e auditEntry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if e.Action == "remove job" && e.User == "ann" && e.Status != 400 && e.Status != 409 {
				removed = append(removed, fmt.Sprint(e.Status, " ", e.Outcome, " ", e.Spec))
			}
		}
		return len(removed) == 4
	})
	if want := []string{"204 done r", "204 done r", "404 failed ", "204 done r"}; !slices.Equal(removed, want) {
		t.Errorf("the audit log has %q, want %q", removed, want)
	}
}

// TestScheduler_Runs: a job waits with the reason behind its name while its kernel starts, and is stopped then.
func TestScheduler_Runs(t *testing.T) {
	g := startUserGateway(t, nil)
	g.fake.newState = api.Starting
	g.runJobs()
	made := g.do("POST", "/scheduler/jobs", schedulerBody+`}`, as("ann")).want(t, 200, "")
	path := "/scheduler/jobs/" + decode[map[string]string](t, made)["job_id"]
	poll.Until(t, "the kernel starts for ann", func() bool {
		sent := g.fake.requests()
		return len(sent) == 1 && sent[0].Owner == "ann" && sent[0].Spec.Name == "r"
	})
	g.fake.set(g.fake.requests()[0].ID, api.Starting, "no GPU is free")
	poll.Until(t, "the reason is behind the name", func() bool {
		got := g.do("GET", path, "", as("ann")).body
		return strings.Contains(got, `"name":"train (no GPU is free)"`) && strings.Contains(got, `"status":"QUEUED"`) &&
			!strings.Contains(got, "status_message")
	})
	g.do("PATCH", path, `{"status":"STOPPED"}`, as("ann")).want(t, 204, "")
	poll.Until(t, "the job has stopped", func() bool {
		got := g.do("GET", path, "", as("ann")).body
		return strings.Contains(got, `"name":"train"`) && strings.Contains(got, `"status":"STOPPED"`) &&
			strings.Contains(got, `"end_time":`)
	})
}

// TestScheduler_Definitions: definitions are stored, paused, changed and removed, and make jobs.
func TestScheduler_Definitions(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.Jobs.Definitions = 2 })
	store := func(more string) string {
		t.Helper()
		made := g.do("POST", "/scheduler/job_definitions", schedulerBody+more+`}`, as("ann")).want(t, 200, "")
		return decode[map[string]string](t, made)["job_definition_id"]
	}
	id := store(`,"schedule":"0 6 * * *","timezone":"Europe/Berlin","idempotency_token":"x"`)
	other := store(`,"timezone":"UTC","idempotency_token":"x"`)
	g.do("POST", "/scheduler/job_definitions", schedulerBody+`}`, as("ann")).want(t, 403, "You have 2 job definitions")
	g.do("POST", "/scheduler/job_definitions", schedulerBody+`,"schedule":"x"}`, as("bob")).want(t, 400, "")
	path := "/scheduler/job_definitions/" + id
	g.do("GET", "/scheduler/job_definitions/"+other, "", as("ann")).want(t, 200, `"job_definition_id":"`+other+
		`","active":true`)
	g.do("GET", path, "", as("ann")).want(t, 200, `"schedule":"0 6 * * *","timezone":"Europe/Berlin","active":true`)
	type patch struct {
		body   string
		status int
		want   string // of the definition then, or of the error
	}
	for _, p := range []patch{
		{`{"active":false}`, 204, `"active":false`},
		{`{"active":true,"name":null,"tags":null}`, 204, `"tags":["night"]`},
		{`{"schedule":"5 5 * * *","timezone":"UTC","input_uri":"train.ipynb"}`, 204, `"5 5 * * *","timezone":"UTC"`},
		{`{"input_uri":"work/train.ipynb","parameters":{"n":"7"}}`, 204, `"parameters":{"n":"7"}`},
		{`{"parameters":{}}`, 204, `"parameters":{}`},
		{`{"input_uri":"other.ipynb"}`, 400, "The gateway reads no files"},
		{`{"name":"new","input_uri":"new/other.ipynb","notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}}`,
			204, `"name":"new","input_filename":"other.ipynb"`},
		{`{"notebook":[]}`, 400, "notebook"},
		{`{"active":"x"}`, 400, "active"},
		{`{"schedule":"x"}`, 400, ""},
		{`{"runtime_environment_name":"unknown"}`, 404, "unknown"},
		{`{"compute_type":"t4"}`, 400, "no flavors"},
		{`{"schedule":""}`, 204, `"job_definition_id":"` + id + `","active":true`},
	} {
		got := g.do("PATCH", path, p.body, as("ann"))
		if p.status == 204 {
			got.want(t, 204, "")
			g.do("GET", path, "", as("ann")).want(t, 200, p.want)
		} else {
			got.want(t, p.status, p.want)
		}
	}
	if sub, err := g.jobs.DefinitionSubmission(t.Context(), id); err != nil || sub.InputPath != "new/other.ipynb" {
		t.Errorf("the definition is %+v, %v", sub.Template, err)
	}
	for _, tt := range []struct{ query, names string }{
		{"", "train new"}, {"?sort_by=name", "new train"}, {"?name=n", "new"}, {"?max_items=1", "train"},
		{"?create_time=9999999999999", ""}, {"?create_time=1", "train new"}, {"?tags=night&status=FAILED", "train new"},
		{"?tags=day", ""},
	} {
		list := decode[schedulerList](t, g.do("GET", "/scheduler/job_definitions"+tt.query, "", as("ann")).want(t, 200, ""))
		if list.names() != tt.names {
			t.Errorf("%s: %q, want %q", tt.query, list.names(), tt.names)
		}
	}
	made := g.do("POST", path+"/jobs", `{"parameters":{"n":"8"}}`, as("ann")).want(t, 200, "")
	job := decode[map[string]string](t, made)["job_id"]
	g.do("GET", "/scheduler/jobs/"+job, "", as("ann")).want(t, 200, `"parameters":{"n":"8"}`).
		want(t, 200, `"job_definition_id":"`+id+`"`)
	g.do("POST", path+"/jobs", `{}`, as("ann")).want(t, 200, "")
	g.do("POST", path+"/jobs", `{"parameters":[1]}`, as("ann")).want(t, 400, "parameters is not an object")
	for _, user := range []string{"bob", "rita"} {
		for method, at := range map[string]string{"GET": path, "PATCH": path, "DELETE": path, "POST": path + "/jobs"} {
			g.do(method, at, `{"active":false}`, as(user)).want(t, 404, noDefinition)
		}
		g.do("GET", "/scheduler/job_definitions", "", as(user)).want(t, 200, `{"job_definitions":[],"total_count":0}`)
	}
	g.do("DELETE", path, "", as("ann")).want(t, 204, "")
	g.do("GET", path, "", as("ann")).want(t, 404, noDefinition)
	g.do("GET", "/scheduler/jobs/"+job, "", as("ann")).want(t, 200, "")
}

// TestScheduler_Refusals: what a gateway cannot do with a request is said by name.
func TestScheduler_Refusals(t *testing.T) {
	g := startGateway(t, nil)
	for body, want := range map[string]string{
		"":                                   "name is missing",
		"[]":                                 "not a JSON object",
		`{"name":"n","input_uri":"a.ipynb"}`: "runtime_environment_name is missing",
		`{"name":"n","runtime_environment_name":"r"}`:                                  "input_uri is missing",
		`{"name":1,"input_uri":"a.ipynb"}`:                                             "name is not a string",
		`{"name":"n","input_uri":"/etc/passwd","runtime_environment_name":"r"}`:        "The gateway reads no files",
		schedulerBody + `,"notebook":null}`:                                            "The gateway reads no files",
		schedulerBody + `,"notebook":"a"}`:                                             "notebook is missing, or not an object",
		schedulerBody + `,"notebook":{"nbformat":3}}`:                                  "format 3",
		schedulerBody + `,"package_input_folder":true}`:                                "not its folder",
		schedulerBody + `,"tags":"x"}`:                                                 "tags is not a list",
		schedulerBody + `,"parameters":"x"}`:                                           "parameters is not an object",
		schedulerBody + `,"parameters":{"<a b>":"1"}}`:                                 "a name has letters",
		schedulerBody + `,"parameters":{"a":"` + strings.Repeat("[", 70<<10) + `"}}`:   "parameters are larger",
		schedulerBody + `,"compute_type":"<t4>"}`:                                      `\u003ct4\u003e`,
		schedulerBody + `,"compute_type":4}`:                                           "compute_type is not a string",
		schedulerBody + `,"input_uri":"` + strings.Repeat("a", 400) + `"}`:             "longer than 300 bytes",
		schedulerBody + `,"idempotency_token":"` + strings.Repeat("canary", 90) + `"}`: "longer than 300 bytes",
	} {
		for _, of := range []string{"jobs", "job_definitions"} {
			if of == "job_definitions" && strings.Contains(body, "idempotency_token") {
				continue // it has none
			}
			g.do("POST", "/scheduler/"+of, body).want(t, 400, want)
		}
	}
	g.do("POST", "/scheduler/jobs", schedulerBody+`,"runtime_environment_name":"../x"}`).want(t, 404, "../x")
	g.do("POST", "/scheduler/jobs", schedulerBody+`,"parameters":{"a":1,"b":null}}`).want(t, 200, "")
	g.do("GET", "/scheduler/jobs/..%2fx", "").want(t, 404, noJob)
	if strings.Contains(g.log.String(), "canary") || strings.Contains(g.log.String(), "..") {
		t.Errorf("a client's text is in the log: %s", g.log)
	}
}

// TestScheduler_Environments: environments are the kernelspecs that the caller may start, with the caller's flavors.
func TestScheduler_Environments(t *testing.T) {
	g := startUserGateway(t, func(o *Options) {
		withFlavors(o)
		o.DefaultKernel = "r"
		withLimitedSpec(o)
	})
	for user, want := range map[string]string{
		"ann": "r:R:t4,h100,quarter:t4 limited:L:t4,h100,quarter:t4 own:Own:t4,h100,quarter:t4 " +
			"python3:Python 3:t4,h100,quarter:t4",
		"bob": "r:R:t4,quarter:t4 own:Own:t4,quarter:t4 python3:Python 3:t4,quarter:t4",
	} {
		var got []string
		answer := g.do("GET", "/scheduler/runtime_environments", "", as(user)).want(t, 200,
			`"file_extensions":["ipynb"],"output_formats":[{"label":"Notebook","name":"ipynb"}],"metadata":{},`)
		for _, e := range decode[[]schedulerEnvironment](t, answer) {
			if e.Label != e.Name {
				t.Errorf("the label of %s is %s", e.Name, e.Label)
			}
			got = append(got, strings.Join([]string{e.Name, e.Description, strings.Join(e.ComputeTypes, ","),
				*e.DefaultComputeType}, ":"))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s sees %q, want %q", user, got, want)
		}
	}
	g.do("POST", "/scheduler/jobs", schedulerBody+`,"compute_type":"h100"}`, as("bob")).want(t, 400, "h100")
	made := g.do("POST", "/scheduler/jobs", schedulerBody+`,"compute_type":"h100"}`, as("ann")).want(t, 200, "")
	g.do("GET", "/scheduler/jobs/"+decode[map[string]string](t, made)["job_id"], "", as("ann")).
		want(t, 200, `"compute_type":"h100"`)
	g.do("GET", "/scheduler/config", "", as("bob")).want(t, 200, `"manage_environments_command":""`).
		want(t, 200, `"stop_job":true`).want(t, 200, `"email_notifications":false`)
	startGateway(t, nil).do("GET", "/scheduler/runtime_environments", "").want(t, 200,
		`"compute_types":null,"default_compute_type":null`)
}
