package enterprise

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recorded are answers that Enterprise Gateway's own code has made; see testdata/enterprise/answers/record.py.
type recorded struct {
	Kernel  string `json:"kernel"`
	Answers []struct {
		Bits     int    `json:"bits"`
		Private  []byte `json:"private"`
		Public   string `json:"public"`
		Version1 string `json:"version1"`
	} `json:"answers"`
	Version0 string `json:"version0"`
}

var recordedAnswer = Answer{ShellPort: 52001, IOPubPort: 52002, StdinPort: 52003, ControlPort: 52004, HBPort: 52005,
	Key: "11111111-2222-4333-8444-555555555555", CommPort: 52006}

func readRecorded(tb testing.TB) (r recorded, keys []*Key) {
	tb.Helper()
	b, err := os.ReadFile("../../../testdata/enterprise/answers/answers.json")
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	for _, a := range r.Answers {
		if err != nil {
			break
		}
		var parsed any
		if parsed, err = x509.ParsePKCS8PrivateKey(a.Private); err == nil {
			var k *Key
			k, err = newKey(parsed.(*rsa.PrivateKey))
			keys = append(keys, k)
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	return r, keys
}

func TestKey_ReadsRecorded(t *testing.T) {
	r, keys := readRecorded(t)
	for i, a := range r.Answers {
		if got := keys[i].Public(); got != a.Public {
			t.Errorf("%d bits: the public key is %s, and the launchers' library prints %s", a.Bits, got, a.Public)
		}
		for version, text := range map[string]string{"1": a.Version1, "0": r.Version0, "1 and a newline": a.Version1 + "\n"} {
			if got, err := keys[i].Read([]byte(text), r.Kernel); err != nil || got != recordedAnswer {
				t.Errorf("%d bits, version %s: %+v, %v", a.Bits, version, got, err)
			}
		}
	}
}

func TestKey_Refuses(t *testing.T) {
	r, keys := readRecorded(t)
	answer := r.Answers[1].Version1
	outer, _ := base64.StdEncoding.DecodeString(answer)
	with := func(key string, value any) string {
		var p map[string]any
		_ = json.Unmarshal(outer, &p)
		p[key] = value
		b, _ := json.Marshal(p)
		return base64.StdEncoding.EncodeToString(b)
	}
	for _, c := range []struct{ name, text, kernel, want string }{
		{"no base64", "GET / HTTP/1.1", r.Kernel, "it is not base64"},
		{"another kernel", answer, "ffffffff" + r.Kernel[8:], "it is of another kernel"},
		{"another kernel, version 0", r.Version0, "ffffffff" + r.Kernel[8:], "it is not an answer of version 0 or 1"},
		{"too long", strings.Repeat("A", maxAnswer+1), r.Kernel, "it has more than 16384 bytes"},
		{"a newer version", with("version", 2), r.Kernel, "its version is 2, and ekg reads 0 and 1"},
		{"another public key", r.Answers[0].Version1, r.Kernel, "it is not encrypted for this start"},
		{"another AES key", with("key", base64.StdEncoding.EncodeToString(make([]byte, 256))), r.Kernel,
			"it is not encrypted"},
		{"no whole blocks", with("conn_info", "AAAA"), r.Kernel, "it is not encrypted for this start"},
		{"no text", with("conn_info", ""), r.Kernel, "it is not encrypted for this start"},
		{"short id", "AAAA", "short", "the kernel's id is too short"},
	} {
		if _, err := keys[1].Read([]byte(c.text), c.kernel); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", c.name, err, c.want)
		}
	}
}

func TestConnectionInfo_Check(t *testing.T) {
	good := connectionInfo{Answer: Answer{ShellPort: 1, IOPubPort: 2, StdinPort: 3, ControlPort: 4, HBPort: 65535}}
	if _, err := good.check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*connectionInfo){
		"its shell_port is 0":           func(i *connectionInfo) { i.ShellPort = 0 },
		"its hb_port is 65536":          func(i *connectionInfo) { i.HBPort = 65536 },
		"its comm_port is -1":           func(i *connectionInfo) { i.CommPort = -1 },
		"its transport is not tcp":      func(i *connectionInfo) { i.Transport = "ipc" },
		"its signature_scheme is not":   func(i *connectionInfo) { i.SignatureScheme = "hmac-md5" },
		"its key has more than 255 byt": func(i *connectionInfo) { i.Key = strings.Repeat("k", 256) },
	} {
		i := good
		change(&i)
		if _, err := i.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// send is what a launcher does with its answer.
func send(t *testing.T, address, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_, err = conn.Write([]byte(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close() // it was written
}

func TestExpectation(t *testing.T) {
	r, keys := readRecorded(t)
	for _, c := range []struct{ name, text, want string }{
		{"an answer", r.Answers[1].Version1, ""},
		{"an answer of version 0", r.Version0, ""},
		{"something else", "x", "the answer of the kernel's launcher cannot be used: it is not base64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := Expect("127.0.0.1:0", r.Kernel, keys[1])
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			vars := e.Variables()
			address := vars["RESPONSE_ADDRESS"]
			if vars["EG_RESPONSE_ADDRESS"] != address || vars["PUBLIC_KEY"] != keys[1].Public() ||
				vars["EG_PUBLIC_KEY"] != keys[1].Public() || vars["KERNEL_ID"] != r.Kernel {
				t.Errorf("variables: %v", vars)
			}
			silent, err := net.Dial("tcp", address) // it delays nobody
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close() //nolint:errcheck // nothing was sent
			send(t, address, "")
			send(t, address, c.text)
			answer, err := e.Await(t.Context())
			if c.want == "" && (err != nil || answer != recordedAnswer) || c.want != "" && fmt.Sprint(err) != c.want {
				t.Errorf("%+v, %v", answer, err)
			}
			if conn, err := net.Dial("tcp", address); err == nil {
				_ = conn.Close() // nothing was sent
				t.Error("it still listens")
			}
		})
	}
}

func TestExpectation_Ends(t *testing.T) {
	_, keys := readRecorded(t)
	if _, err := Expect("0.0.0.0:0", "k", keys[1]); err == nil {
		t.Error("it listens on all addresses")
	}
	e, err := Expect("127.0.0.1:0", "k", keys[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Expect(e.Variables()["RESPONSE_ADDRESS"], "k", keys[1]); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("an address in use: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := e.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// failing is a listener that has no free file descriptor twice.
type failing struct {
	listener
	accepts int
}

func (f *failing) AcceptTCP() (*net.TCPConn, error) {
	if f.accepts++; f.accepts <= 2 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return f.listener.AcceptTCP()
}

// TestExpectation_Accept: a connection that could not be accepted at first is accepted later.
func TestExpectation_Accept(t *testing.T) {
	r, keys := readRecorded(t)
	e, err := Expect("127.0.0.1:0", r.Kernel, keys[1])
	if err != nil {
		t.Fatal(err)
	}
	e.listener = &failing{listener: e.listener}
	send(t, e.Variables()["RESPONSE_ADDRESS"], r.Answers[1].Version1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if answer, err := e.Await(ctx); err != nil || answer != recordedAnswer {
		t.Errorf("%+v, %v", answer, err)
	}
}

func TestSignal(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	asked := make(chan string, 2)
	go func() {
		defer close(asked)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var b [100]byte
			n, _ := conn.Read(b[:])
			if rest, _ := conn.Read(b[n:]); rest > 0 {
				n += rest
			}
			_ = conn.Close() // it was read
			asked <- string(b[:n])
		}
	}()
	if err := Signal(port, syscall.SIGINT); err != nil || <-asked != `{"signum":2}` {
		t.Error("no signal", err)
	}
	if err := EndListener(port); err != nil || <-asked != `{"shutdown":1}` {
		t.Error("no end", err)
	}
	_ = l.Close() // nothing was sent
	<-asked
	if Signal(port, syscall.SIGINT) == nil {
		t.Error("a launcher that is gone has read a request")
	}
}

func FuzzKey_Read(f *testing.F) {
	r, keys := readRecorded(f)
	f.Add([]byte(r.Version0), r.Kernel)
	f.Add([]byte(r.Answers[0].Version1), r.Kernel)
	f.Add([]byte(base64.StdEncoding.EncodeToString([]byte(`{"version": 1, "key": "", "conn_info": ""}`))), r.Kernel)
	f.Fuzz(func(t *testing.T, text []byte, kernelID string) {
		a, err := keys[0].Read(text, kernelID)
		if err == nil && (a.ShellPort < 1 || a.HBPort > 65535 || a.CommPort < 0 || len(a.Key) > maxKey) {
			t.Errorf("%+v", a)
		}
	})
}
