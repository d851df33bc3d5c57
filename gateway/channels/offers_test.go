package channels

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// offer has the arguments of an offer of the library websockets.
type offer map[string]any

// compressionCase is one websocket of testdata/offers.py.
type compressionCase struct {
	Offers []offer `json:"offers"`
	Random bool    `json:"random"`
	want   bool    // a supervisor that may compress takes the offer
}

// compressionCases are 20 lists of offers, each with a text that compression makes smaller, and with one that it does
// not.
func compressionCases() (cases []compressionCase) {
	const (
		serverBits, clientBits = "server_max_window_bits", "client_max_window_bits"
		serverNo, clientNo     = "server_no_context_takeover", "client_no_context_takeover"
	)
	for _, c := range []compressionCase{
		{Offers: []offer{}},
		{Offers: []offer{{}}, want: true},
		{Offers: []offer{{clientBits: true}}, want: true},
		{Offers: []offer{{serverNo: true}}, want: true},
		{Offers: []offer{{clientNo: true}}, want: true},
		{Offers: []offer{{serverNo: true, clientNo: true}}, want: true},
		{Offers: []offer{{serverNo: true, clientBits: true}}, want: true},
		{Offers: []offer{{serverNo: true, clientNo: true, clientBits: true}}, want: true},
		{Offers: []offer{{serverBits: 9}}},
		{Offers: []offer{{serverBits: 10}}},
		{Offers: []offer{{serverBits: 11, serverNo: true}}},
		{Offers: []offer{{serverBits: 12, clientBits: 12}}}, // the library's default
		{Offers: []offer{{serverBits: 13, clientBits: true}}},
		{Offers: []offer{{serverBits: 14}}},
		{Offers: []offer{{serverBits: 15}}},
		{Offers: []offer{{serverBits: 15, serverNo: true, clientNo: true}}},
		{Offers: []offer{{serverBits: 10}, {}}, want: true},
		{Offers: []offer{{}, {serverBits: 10}}, want: true},
		{Offers: []offer{{serverBits: 12, clientBits: true}, {clientBits: true}}, want: true},
		{Offers: []offer{{serverBits: 9}, {serverBits: 12}}},
	} {
		cases = append(cases, c)
		c.Random = true
		cases = append(cases, c)
	}
	return cases
}

// TestCompression_Websockets compares with the client library websockets, which checks what its offers are answered
// with. Each of its websockets runs a cell, on a supervisor that may compress, on one that may not, and through the
// lobby, which compresses nothing. EKG_TEST_PYTHON is an interpreter, and EKG_TEST_PACKAGES is what hack/env/notebook
// prints.
func TestCompression_Websockets(t *testing.T) {
	python, packages := os.Getenv("EKG_TEST_PYTHON"), os.Getenv("EKG_TEST_PACKAGES")
	if python == "" || packages == "" {
		t.Skip("EKG_TEST_PYTHON and EKG_TEST_PACKAGES are not set")
	}
	for name, place := range map[string]struct{ lobby, compress bool }{
		"supervisor that may compress": {compress: true}, "supervisor that may not": {}, "lobby": {lobby: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			s.addStarting(idA, "its image is pulled")
			if !place.lobby {
				s.superviseReal(t)
			}
			header := map[string]string{}
			if place.compress {
				header[api.HeaderCompress] = "1"
			}
			cases := compressionCases()
			input, err := json.Marshal(map[string]any{"url": "ws" + s.http.URL[4:] + "/" + idA, "header": header,
				"together": place.lobby, "cases": cases})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), python, "testdata/offers.py")
			cmd.Env = append(os.Environ(), "PYTHONPATH="+packages)
			cmd.Stdin, cmd.Stderr = strings.NewReader(string(input)), os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			if !lines.Scan() || lines.Text() != "entered" {
				t.Errorf("it printed %q", lines.Text())
			}
			if place.lobby {
				s.superviseReal(t)
			}
			n := 0
			for ; lines.Scan() && n < len(cases); n++ {
				c := cases[n]
				var got struct {
					Extensions string
					Compressed int
					Right      bool
				}
				if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
					t.Fatal(err)
				}
				want := c.want && place.compress
				if !got.Right || want != (got.Extensions != "") || want != (got.Compressed > 0) {
					t.Errorf("%v, random %v: %+v, want compression %v", c.Offers, c.Random, got, want)
				}
			}
			if err := cmd.Wait(); err != nil || n != len(cases) {
				t.Errorf("%d of %d cases: %v", n, len(cases), err)
			}
		})
	}
}
