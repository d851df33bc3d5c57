package gateway

import (
	"strings"
	"testing"
)

// TestJobs_Refusals: a job or a definition with a mistake is refused at once, and no text of its client is logged.
func TestJobs_Refusals(t *testing.T) {
	g := startGateway(t, nil)
	body := `{"kernelspec":"r","notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}`
	for body, want := range map[string]string{
		"":                                    "notebook is missing, or not an object",
		"[]":                                  "not a JSON object",
		body + `,"notebook":"a"}`:             "notebook is missing, or not an object",
		body + `,"notebook":{"nbformat":3}}`:  "format 3",
		body + `,"name":1}`:                   "name is not a string",
		body + `,"tags":"x"}`:                 "tags is not a list",
		body + `,"parameters":"x"}`:           "parameters is not an object",
		body + `,"parameters":{"<a b>":"1"}}`: "a name has letters",
		body + `,"parameters":{"a":"` + strings.Repeat("[", 70<<10) + `"}}`: "parameters are larger",
		body + `,"flavor":4}`:                                      "flavor is not a string",
		body + `,"flavor":"<t4>"}`:                                 `\u003ct4\u003e`,
		body + `,"input_path":"` + strings.Repeat("a", 400) + `"}`: "longer than 300 bytes",
		body + `,"token":"` + strings.Repeat("canary", 90) + `"}`:  "longer than 300 bytes",
	} {
		for _, path := range []string{"/api/jobs", "/api/jobs/definitions"} {
			g.do("POST", path, body).want(t, 400, want)
		}
	}
	g.do("POST", "/api/jobs", body+`,"kernelspec":"../x"}`).want(t, 404, "../x")
	g.do("GET", "/api/jobs/..%2fx", "").want(t, 404, noJob)
	if strings.Contains(g.log.String(), "canary") || strings.Contains(g.log.String(), "..") {
		t.Errorf("a client's text is in the log: %s", g.log)
	}
}

// TestJobs_OtherLanguage: a notebook whose kernelspec is not here does not run in a kernel of another language.
func TestJobs_OtherLanguage(t *testing.T) {
	g := startGateway(t, nil)
	const julia = `"kernelspec":{"name":"julia-1.9","display_name":"Julia","language":"julia"}`
	body := func(metadata, more string) string {
		return `{"notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{` + metadata + `},"cells":[]}` + more + `}`
	}
	for _, path := range []string{"/api/jobs", "/api/jobs/definitions"} {
		g.do("POST", path, body(julia, "")).want(t, 400, `The notebook is in \"julia\", and its kernelspec`)
		g.do("POST", path, body(julia+`,"language_info":{"name":3}`, "")).want(t, 400, "julia")
		g.do("POST", path, body(`"language_info":{"name":"R"}`, "")).want(t, 400, `is for \"python\"`)
	}
	for _, metadata := range []string{"", `"kernelspec":{"name":"conda-env","language":"python"}`,
		`"kernelspec":{"name":"r"},"language_info":{"name":"julia"}`, `"language_info":{"name":"Python"}`} {
		g.do("POST", "/api/jobs", body(metadata, "")).want(t, 201, "queued")
	}
	g.do("POST", "/api/jobs", body(julia, `,"kernelspec":"python3"`)).want(t, 201, "python3") // as papermill's -k
}

// TestJobs_NaN: a notebook that Python has written may have NaN. It is given back as it was.
func TestJobs_NaN(t *testing.T) {
	g := startGateway(t, nil)
	const notebook = `{"nbformat":4,"nbformat_minor":5,"metadata":{"x":[NaN,-Infinity,"NaN"]},"cells":[]}`
	made := g.do("POST", "/api/jobs", `{"kernelspec":"python3","notebook":`+notebook+`}`).want(t, 201, "queued")
	path := strings.TrimPrefix(made.Header.Get("Location"), g.base)
	if got := g.do("GET", path+"/notebook?source=1", "").want(t, 200, "").body; got != notebook {
		t.Errorf("it is %s", got)
	}
}
